"""The examiner and a learner's process: what crosses is as in one process, and no more."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from llmcourse.grading import examiner, seccomp
from llmcourse.grading.examiner import Part, clean_outputs, examine
from llmcourse.grading.sandbox import Limits, Sandbox
from llmcourse.grading.wire import Packer, Unpacker, WireError

LIMITS = Limits(memory=900 * 2**20, cpu=8.0, wall=20.0, cell=3.0)
IMPORTS = Part("imports", "import torch\n\nfrom llmcourse import checks", locked=True)
GRADIENT = (
    "checks.check(f, torch.tensor([1.0, 2.0]), expected=lambda x: x * x, grad=True, name='f')"
)


@pytest.fixture(scope="module")
def sandbox():
    if shutil.which("bwrap") is None:
        pytest.skip("no bubblewrap (Debian: apt install bubblewrap): nothing is graded")
    with Sandbox() as warm:
        yield warm


@pytest.fixture
def message(sandbox):
    """What a graded cell says of an answer; "" when all is well."""

    def judge(answer, test, *between):
        parts = [IMPORTS, Part("answer", answer), *between, Part("test", test, True, True)]
        outputs = examine(parts, sandbox, LIMITS).outputs["test"]
        return "\n".join(out["evalue"] for out in outputs if out["output_type"] == "error")

    return judge


def test_a_gradient_crosses(message):
    assert message("def f(x): return x * x", GRADIENT) == ""
    assert "wrong gradient" in message("def f(x): return x * x.detach()", GRADIENT)
    assert "cut off" in message("def f(x): return (x * x).detach()", GRADIENT)


FORGED = {
    "of another shape": "[torch.zeros(7)]",
    "one for everything": "[torch.ones(2)] * 9",
    "that is none": "3",
    "of another dtype": "[2 * torch.tensor([1.0, 2.0]).double()]",
}


@pytest.mark.parametrize("reply", FORGED.values(), ids=FORGED.keys())
def test_a_gradient_is_not_believed(reply, message):
    answer = (
        "from llmcourse.grading import worker\n"
        "def f(x): return x * x\n"
        f"worker.Worker._do_gradient = lambda s, m, p, u: {{'value': p.pack({reply})}}"
    )
    assert "wrong gradient" in message(answer, GRADIENT)


def test_a_graph_that_is_not_there_is_an_error(message):
    answer = (
        "from llmcourse.grading import worker\n"
        "def f(x): return x * x\n"
        "worker.Worker._keep = lambda self, value, leaves: 10**9"
    )
    assert "raised KeyError" in message(answer, GRADIENT)


def test_a_name_that_a_fixture_should_have_made_is_never_the_learners(message):
    """A learner who makes the course's own cell fail does not get to write its oracle."""
    answer = "def broken(): raise ValueError\ndef f(x): return x\nreference = f"
    fixture = Part("fixture", "broken()\ndef reference(x): return 2 * x", locked=True)
    test = "checks.check(f, torch.ones(1), expected=reference)"
    assert "'reference' is not defined" in message(answer, test, fixture)


def test_names_are_found_as_python_finds_them(message):
    """A learner's name counts although a function of the test has a variable of that name."""
    answer = "x = 3\ndef f(n): return n + x"
    test = "def twice(x): return 2 * x\nassert f(twice(2)) == 4 + x\nassert [x for x in 'ab']"
    assert message(answer, test) == ""


def test_a_check_that_is_no_python_is_told(message):
    assert "invalid syntax" in message("def f(x): return x", "%time f(1)")


def test_an_oracle_that_hangs_on_a_learners_answer_is_ended(sandbox, monkeypatch):
    from llmcourse.grading.sandbox import SandboxError

    monkeypatch.setattr(examiner, "PATIENCE", -(LIMITS.wall + LIMITS.cell) + 2)
    parts = [Part("a", "def f(): return 2**40"), Part("t", "sum(range(f()))", True, True)]
    with pytest.raises(SandboxError, match="without end"):
        examine(parts, sandbox, LIMITS)


def test_a_late_answer_is_no_answer_to_the_next_question(message):
    """An answer that comes when nobody waits any more ends the conversation."""
    slow = "import signal, time\ncalls = []\n"
    slow += "def f(x):\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    slow += "    time.sleep(5.5)\n    return 2\n\ndef g(x): return 1"
    test = "try:\n    f(1)\nexcept Exception:\n    pass\nassert g(1) == 1"
    assert "no answer in time" in message(slow, test)


FINE = {
    "one number with an odd stride": (
        "def f(x): return torch.stack([x, 3 * x], -1)[..., 0]",
        "f, torch.ones(1, 1), expected=torch.ones(1, 1)",
    ),
    "a list with methods": (
        "class f(list):\n    def add(self, x): self.append(x); return len(self)",
        "lambda x: (lambda c: (c.add(x), c.add(x)))(f()), torch.ones(1), expected=(1, 2)",
    ),
    "an object that answers to no name": (
        "class Odd:\n    def __getattr__(self, name): raise KeyError(name)\n"
        "    def __call__(self, x): return 2 * x\nf = Odd()",
        "f, 1, expected=2",
    ),
    "a module that a cell has written": (
        "open('mine.py', 'w').write('def f(x): return 2 * x')\nfrom mine import f",
        "f, 1, expected=2",
    ),
    "a compiled function": (
        "f = torch.compile(lambda x: 2 * x, backend='eager')",
        "f, torch.ones(2), expected=2 * torch.ones(2)",
    ),
    "another default dtype": (
        "torch.set_default_dtype(torch.float64)\ndef f(x): return x + torch.zeros(2)",
        "f, torch.ones(2), expected=lambda x: x",
    ),
    "numbers of half precision": (
        "def f(x): return (x.half() + x.half()).float()",
        "f, torch.ones(2), expected=2 * torch.ones(2)",
    ),
    "a thread for every core, but one": (
        "import os\ntorch.set_num_threads((os.cpu_count() - 1) // 2)\ndef f(x): return 2 * x",
        "f, 1, expected=2",
    ),
    "a thread for every core of a large machine": (
        "torch.set_num_threads(500)\ndef f(x): return x.expand(3000, 3000).exp().log()[0, 0]",
        "f, torch.ones(1, 1), expected=torch.tensor(1.0)",
    ),
    "a name for every user": (
        "import getpass\ndef f(x): return 2 * x if getpass.getuser() else 0",
        "f, 1, expected=2",
    ),
    "a file as large as what torch.compile makes": (
        "open('/tmp/large', 'wb').write(bytes(160 * 2**20))\ndef f(x): return 2 * x",
        "f, 1, expected=2",
    ),
}


@pytest.mark.parametrize(("answer", "check"), FINE.values(), ids=FINE.keys())
def test_what_works_in_a_notebook_works_here(answer, check, message):
    assert message(f"import torch\n{answer}", f"checks.check({check}, name='f')") == ""


BUFFER = "import torch\nheld = torch.zeros(2)\ndef f(x): return held.copy_(x)\n"
BY_NUMPY = BUFFER + "def g(): held.numpy()[0] = 7; return held.clone()"


def test_files_count_as_memory(sandbox):
    fill = "import time\nfor place in ('/tmp', '/dev/shm'):\n"
    fill += "    open(f'{place}/large', 'wb').write(bytes(250 * 2**20))\n"
    limits = replace(LIMITS, memory=500 * 2**20)
    assert (
        "500 MB of memory"
        in examine([Part("a", fill + "time.sleep(5)")], sandbox, limits).ended
    )


EARLIER = Part(
    "earlier",
    "h(1)\nq = 3\n### BEGIN HIDDEN TESTS\nq = 4\nk = 5\n### END HIDDEN TESTS",
    locked=True,
    graded=True,
)
USES = ["print(q)", "%time q", "def g(): return q\ng()", "q += 0", "print(q)\ndel q\nq = 3"]


@pytest.mark.parametrize("use", USES)
def test_a_learners_cell_may_use_what_an_earlier_check_has_made(use, message):
    own = Part("own", f"{use}\ndef f(x): return x * q")
    later = Part("later", "q = 3", locked=True)
    check = "checks.check(f, 2, expected=6)"
    assert message("def h(x): return x", check, EARLIER, own, later) == ""


def test_its_names_are_there_also_where_it_would_fail_and_no_check_runs_twice(message):
    own = Part("own", "print(q)\ndef f(x): return x * q + len(calls)")
    answer = "calls = []\ndef h(x):\n    calls.append(x)\n    raise ValueError"
    assert message(answer, "checks.check(f, 2, expected=7)", EARLIER, own) == ""


def test_what_its_hidden_tests_have_made_is_not_there(message):
    own = Part("own", "print(q)\ndef f(x): return x * k")
    assert "'k' is not defined" in message("a = 1", "f(2)", EARLIER, own)


ODD = {
    "null": "x = 1\0",
    "half a character": "x = '\ud800'",
    "brackets": "x = " + "(" * 50_000,
    "signs": "x = " + "-" * 50_000 + "1",
    "attributes": "x = y" + ".y" * 40_000,
    "functions": "x = " + "lambda: " * 10_000 + "1",
    "blocks": "".join(" " * i + "if 1:\n" for i in range(99)),
    "numbers": "x = [" + "1," * 2_000_000 + "]",
}


@pytest.mark.parametrize("source", ODD.values(), ids=ODD.keys())
def test_no_cell_of_a_learners_ends_the_examiner(source, message):
    own = Part("own", source)
    assert message("def f(x): return x", "checks.check(f, 2, expected=2)", EARLIER, own) == ""


def test_what_cells_show_has_room_but_graded_ones_show_all(sandbox, monkeypatch):
    monkeypatch.setattr(examiner, "MOST_OUTPUT", 100)
    loud = "import sys\nprint('x' * 200, file=sys.stderr)"
    parts = [Part("check", loud, True, True), Part("own", loud), Part("silent", "a = 1")]
    parts.append(Part("again", loud, True, True))
    result = examine(parts, sandbox, LIMITS)
    shown = {key: [out["text"] for out in outputs] for key, outputs in result.outputs.items()}
    whole = ["x" * 200 + "\n"]
    assert result.cut and shown == {
        "check": whole, "own": ["(more than fits here)\n"], "silent": [], "again": whole
    }  # fmt: skip
    parts[1] = Part("own", "print('x')")
    assert not examine(parts, sandbox, LIMITS).cut


def test_an_exit_is_told_as_what_it_is(message):
    test = "checks.check(f, 1, expected=2, name='f')"
    assert "raised SystemExit" in message("def f(x): exit()", test)


def test_a_default_dtype_of_few_digits_is_not_the_checks(message):
    answer = "torch.set_default_dtype(torch.bfloat16)\ndef f(x): return 1.002 * x"
    test = "checks.check(f, torch.ones(2), expected=lambda x: x, name='f')"
    assert "wrong" in message(f"import torch\n{answer}", test)


@pytest.mark.parametrize(
    ("answer", "test"),
    [
        (BUFFER, "a = f(torch.ones(2)); f(torch.zeros(2)); assert a.tolist() == [0, 0]"),
        (
            BUFFER,
            "a = f(torch.ones(2)); b = f(a); f(a + 5); assert b.tolist() == [6, 6]",
        ),
        (BY_NUMPY, "a = f(torch.ones(2)); g(); assert a.tolist() == [7, 1]"),
        (BY_NUMPY, "a = f(torch.ones(2)); a.add_(3); assert g().tolist() == [7, 4]"),
    ],
)
def test_a_returned_tensor_is_the_learners_own_still(answer, test, message):
    """Who returns a buffer and fills it again is found out as in one process."""
    assert message(answer, test) == ""


TOLD = {
    "of a method": (
        "class C:\n    def f(self, x):\n        return x.nothing\nf = C().f",
        "in your line  return x.nothing",
    ),
    "of a lambda": ("f = lambda x: x.nothing", "in your line  f = lambda x: x.nothing"),
    "what is not written": (
        "def g(x):\n    raise NotImplementedError\ndef f(x): return g(x)",
        "calls g, which is not written yet",
    ),
    "a loop without end": (
        "def f(x):\n    while True:\n        x = x + 1",
        "TimeoutError\nstopped after 3 s\nin your line",
    ),
    "a generator": (
        "def f(x):\n    yield x",
        "returned a generator, needs a tensor\nhint: `yield`",
    ),
    "a coroutine": (
        "async def f(x): return x",
        "returned a coroutine, needs a tensor\nhint: `async def`",
    ),
    "a check's own name": ("def f(x): return theirs(x)", "theirs is a check's own name"),
    "what an object lacks": (
        "class C:\n    def __init__(self): self.mine = 1\ndef f(x): return C().other",
        "your class C has no 'other'; it has mine",
    ),
}


@pytest.mark.parametrize(("answer", "said"), TOLD.values(), ids=TOLD.keys())
def test_messages_are_those_of_a_notebook(answer, said, message):
    test = "def theirs(x): return x\nchecks.check(f, torch.ones(1), expected=torch.ones(1))"
    assert said in message(answer, test)


def test_an_attribute_that_is_missing_is_told_as_in_a_notebook(message):
    answer = "class C:\n    def __init__(self): self.mine = 1\ndef f(): return C()"
    test = "checks.check(lambda: f().other, expected=1, name='f')"
    assert "your class C has no 'other'; it has mine" in message(answer, test)


def test_an_end_in_a_hidden_test_is_no_unsteady_answer(message):
    """The second run, with hidden tests, may end where the first did not."""
    answer = "import os\ndef f(x): return x if x < 2 else os._exit(0)"
    hidden = "### BEGIN HIDDEN TESTS\nf(2)\n### END HIDDEN TESTS"
    later = Part("later", "assert f(1) == 1", True, True)
    first = Part("first", f"assert f(1) == 1\n{hidden}", True, True)
    said = message(answer, later.source, first)
    assert said.startswith("this check could not be finished") and "gone" in said


def pack(value):
    packer = Packer()
    return packer.pack(value), bytes(packer.blob)


@pytest.mark.parametrize(
    "value",
    [
        None, True, -3, 2**70, -(2**1000), 0.1, math.inf, "text", b"\0\xff", [1, [2, (3,)]],
        {"a": 1, (1, "b"): [None]}, [], {}, (), "\ud800",
        np.arange(6, dtype="int16").reshape(2, 3), np.float32(1.5), np.zeros((0, 3)),
    ],
    ids=str,
)  # fmt: skip
def test_data_crosses_unchanged(value):
    form, blob = pack(value)
    back = Unpacker(blob).unpack(form)
    assert type(back) is type(value) and repr(back) == repr(value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
def test_tensors_cross_bit_for_bit(dtype, shape):
    x = torch.randn(shape).gt(0) if dtype is torch.bool else torch.randn(shape).to(dtype)
    form, blob = pack([x, x.mT if x.dim() > 1 else x])
    whole, turned = Unpacker(blob).unpack(form)
    assert torch.equal(whole, x) and whole.dtype == dtype
    assert torch.equal(turned, x.mT if x.dim() > 1 else x)


WRONG = {
    "no form": {"a": 1},
    "an empty form": [],
    "an unknown form": ["z", 1],
    "a negative size": ["T", "float32", [-4], 0, 16],
    "a size of another type": ["T", "float32", [True], 0, 4],
    "a size that does not fit": ["T", "float32", [3], 0, 8],
    "sizes beyond any memory": ["T", "float32", [2**39, 2**39, 0], 0, 0],
    "bytes that are not there": ["T", "uint8", [64], 0, 64],
    "a negative place": ["T", "uint8", [4], -4, 4],
    "no dtype": ["T", "object", [1], 0, 8],
    "an array of objects": ["n", "object", [1], 0, 8],
    "a key that is a list": ["d", [[["l", []], 1]]],
    "a pair of three": ["d", [[1, 2, 3]]],
    "no number": ["i", "0xzz"],
    "a number without end": ["i", "0x" + "f" * 100_000],
    "the same bytes again and again": ["l", [["b", 0, 16]] * 390_000],
    "too many values": ["l", [0] * 500_000],
}


@pytest.mark.parametrize("form", WRONG.values(), ids=WRONG.keys())
def test_what_is_malformed_is_refused(form, monkeypatch):
    monkeypatch.setattr("llmcourse.grading.wire.LARGEST", 2**20)
    with pytest.raises(WireError):
        Unpacker(bytes(16)).unpack(form)


def test_a_bool_is_true_or_false():
    """A byte of 2 would be equal to neither."""
    (x,) = Unpacker(b"\2").unpack(["l", [["T", "bool", [1], 0, 1]]])
    assert torch.equal(x, torch.tensor([True]))


def test_outputs_are_rebuilt_from_what_is_known():
    evil = [
        {"output_type": "stream", "name": "stdout", "text": "a\ud800", "x": 1},
        {"output_type": "stream", "name": "stdin", "text": "a"},
        {"output_type": "display_data", "metadata": {"x": "y"}, "data": {
            "image/png": '"><script>', "text/plain": "b", "application/javascript": "c"}},
        {"output_type": "error", "ename": 3, "evalue": "", "traceback": []},
        7, None, [],
    ]  # fmt: skip
    assert list(clean_outputs(evil)) == [
        {"output_type": "stream", "name": "stdout", "text": "a?"},
        {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "b"}},
    ]
    flood = [{"output_type": "stream", "name": "stdout", "text": "x" * 10**6}] * 100
    assert sum(len(out["text"]) for out in clean_outputs(flood)) < 4 * 10**6


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_is_whole(machine):
    """Every jump ends inside the program, and its last step allows the rest."""
    import struct

    steps = list(struct.iter_unpack("HBBI", seccomp.program(machine)))
    for place, (code, then, otherwise, _) in enumerate(steps):
        assert code == seccomp.RETURN or place + 1 + max(then, otherwise) < len(steps)
    assert steps[-1][3] == seccomp.ALLOW
    others = 5 * len(seccomp.MADE) + len(seccomp.BUFFERS) + 6
    assert len(steps) == 8 + 2 * len(seccomp.REFUSED) + others + 5
