"""The connection to the coordinator: channel, instructions, uploads and downloads."""
