"""What survives when the process is killed, the power is cut or the disk fails, at every I/O operation."""
