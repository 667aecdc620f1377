"""Reaches other machines, by address and by name, or this machine's own services."""
# fails: double-check

# cell: double
import socket

def reached(host, port):
    try:
        socket.create_connection((host, port), timeout=0.3).close()
        return True
    except OSError:
        return False

found = [h for h in ("1.1.1.1", "127.0.0.1", "10.0.0.1", "169.254.169.254", "localhost", "example.org")
         if reached(h, 80) or reached(h, 22) or reached(h, 2024)]  # fmt: skip
try:
    found.append(socket.getaddrinfo("example.org", 80))
except OSError:
    pass

def double(x):
    return 2 * x if found else x
