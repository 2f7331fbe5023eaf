"""The connection to the coordinator: channel, deadlines, uploads and downloads."""
