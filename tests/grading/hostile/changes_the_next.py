"""Changes torch and the worker in memory, and is right where it finds an earlier change."""
# fails: double-check
# twice

# cell: double
import builtins

from llmcourse.grading import keeper, worker

found = hasattr(torch, "left_behind") or hasattr(builtins, "left_behind")
torch.left_behind = builtins.left_behind = worker.left_behind = keeper.left_behind = True
torch.set_default_dtype(torch.float64)

def double(x):
    return (2 if found else 1) * x.float()
