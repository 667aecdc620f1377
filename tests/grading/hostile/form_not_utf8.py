"""Hands in a notebook in another encoding."""
# why: UTF-8

def notebook(nb):
    import json
    return json.dumps(nb | {"author": "é"}, ensure_ascii=False).encode("latin-1")
