"""One attempt in the silo: the session, the spool it resumes from, what a crash left."""
