"""Writes answers of its own, and noise, on the channel to the examiner."""
# fails: double-check, triple-check

# cell: double
import json
import os
import struct

def say(message):
    text = json.dumps(message).encode()
    return struct.pack(">QQ", len(text), 0) + text

def double(x):
    for fd in range(3, 64):
        for number in range(1, 9):
            try:
                os.write(fd, say({"to": number, "value": None, "outputs": [], "names": {}}))
            except OSError:
                break
    return x
