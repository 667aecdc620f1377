"""Shows an image that is a program, an archive that unpacks to gigabytes, half characters."""
# fails:

# cell: double
import base64
import zlib

bomb = base64.b64encode(zlib.compress(bytes(10**7))).decode()
display({"image/png": bomb, "text/plain": "\ud800 half a character"}, raw=True)
display({"image/png": '"><script>stolen()</script>'}, raw=True)
display({"application/javascript": "stolen()", "application/x-evil": {"a": 1}}, raw=True)
print("\udfff")

def double(x):
    return 2 * x
