"""Protocols without I/O: no socket, file, thread or clock. Messages and times go in, messages and outcomes come out."""
