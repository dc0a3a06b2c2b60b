"""Code is found in a reply where people see it, and in no more time than it takes to read the reply."""

from __future__ import annotations

import time

import pytest

from rlhf.reward.code_block import code_of

DOCUMENTED = 'def f():\n    """As in\n    ```python\n    f()\n    ```\n"""\n    return "```"  # ```\n'


ADD, USE = "def add(a, b):\n    return a + b\n", "def f(x):\n    return add(x, 1)\n"
GOOD, BAD = "def f(x):\n    return x\n", "def f(x):\n    return 0\n"


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}```\n"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        pytest.param(f"So:\n{fenced(GOOD, '')}", GOOD, id="no language"),
        pytest.param(f"{fenced(GOOD, '')}It prints\n{fenced('6', '').replace('6', '6' + chr(10))}", GOOD, id="output"),
        pytest.param(f"{fenced(GOOD)}or\n{fenced(BAD, '')}", GOOD, id="a language goes first"),
        pytest.param(f"{fenced('{}', 'json').replace('{}', '{}' + chr(10))}{fenced(GOOD, '')}", GOOD, id="after json"),
        pytest.param(f"<answer>{GOOD}</answer>", GOOD, id="tags"),
        pytest.param(f"I see.\n<answer>\n{fenced(GOOD)}</answer>\n", GOOD, id="a fence within tags"),
        pytest.param(f"{fenced(BAD)}\n<answer>\n{GOOD}</answer>", GOOD, id="tags behind a draft"),
        pytest.param(f"<think>\n{fenced(BAD)}</think>\n{GOOD}", f"\n{GOOD}", id="a thought"),
        pytest.param(f"{fenced(BAD)}</think>{fenced(GOOD)}", GOOD, id="a thought that the template began"),
        pytest.param(f"<think>\n{fenced(GOOD)}", "", id="thinking never ends"),
        pytest.param(fenced('said = "<think>"\n'), 'said = "<think>"\n', id="a program about thinking"),
        pytest.param(f"{fenced(ADD)}and\n{fenced(USE)}", f"{ADD}\n{USE}", id="two blocks"),
        pytest.param(fenced("import math\nM = 7\n") + fenced("print(math.pi * M)\n"),
                     "import math\nM = 7\n\nprint(math.pi * M)\n", id="imports and a constant"),
        pytest.param(fenced("from a import (b)\nfrom c import d as e\n") + fenced("e()\n"),
                     "from a import (b)\nfrom c import d as e\n\ne()\n", id="another name"),
        pytest.param(f"{fenced(BAD)}better:\n{fenced(GOOD)}", GOOD, id="a draft"),
        pytest.param(fenced("n = int(input())\nprint(n)\n") + fenced("n = 1\nprint(n)\n"), "n = 1\nprint(n)\n",
                     id="a draft with the same variables"),
        pytest.param(f'{GOOD}"""\n```\nprint(f(1))\n```\n"""', f'{GOOD}"""\n```\nprint(f(1))\n```\n"""', id="bare"),
    ],
)  # fmt: skip
def test_code_is_found_where_replies_write_it(reply: str, code: str) -> None:
    assert code_of(reply) == code


def test_the_last_block_of_python_is_the_code_and_the_whole_reply_where_there_is_none() -> None:
    assert code_of("a\n```python\nx = 1\n```\nb\n```py\ny = 2\n```\n```text\nz\n```") == "y = 2\n"
    assert code_of("```python\nx = 1") == "x = 1"
    assert code_of("x = 1") == "x = 1"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (f"So:\n```python\n{DOCUMENTED}```\nand\n```\noutput\n```", DOCUMENTED),
        ("Here it is: ```py\nx = 1```.", "x = 1"),
        ("- a list\n  ```Python3 title=x\n  x = 1\n  ```\n", "x = 1\n"),
        ("1. a list\n\n   ```python\n   def f():\n       return 1\n   ```\n", "def f():\n    return 1\n"),
        ("- ```python\n  def f():\n\n      return 1\n  ```\n", "def f():\n\n    return 1\n"),
        ("> ```python\n> def f():\n>\n>     return 1\n> ```\n", "def f():\n\n    return 1\n"),
        ("> > ```python\n> > x = 1\n>> y = 2\n> > ```", "x = 1\ny = 2\n"),
        ("``` python\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = '~~~'  # ```\n~~~\n", "x = '~~~'  # ```\n"),
        ("~~~ py\nx = 1\n```\n~~~", "x = 1\n```\n"),
        ("\t```python\n\tx = 1\n\t```", "x = 1\n"),
        ("It is > ```python\n  x = 1\n```", "  x = 1\n"),
        ("````python\nx = 1\n```\n````", "x = 1\n```\n"),
        ("```python\nx = '''\n```\nno,\n```python\ny = 2\n```", "y = 2\n"),
        ("```python\nx = 1\n```python\ny = 2", "y = 2"),
        ("```python x = 1```", "```python x = 1```"),
        ("```json\n1\n```", "```json\n1\n```"),
        *(
            (f"```python3.11\nx = 1\n```\n```{shown}\n>>> x\n1\n```", "x = 1\n")
            for shown in ("pycon", "python-repl", "pytest", "python_out")
        ),
        *(
            (f"```python\nx = 1\n```\n{prose}", "x = 1\n")
            for prose in ("I used ```python fences.", "Open it with ```python", "```python -m pytest\n```\nruns it")
        ),
        *(
            (f"```{told}\nx = 1\n```", "x = 1\n")
            for told in ("{python}", "{.py .numbered}", "python:a.py", "py3", "python,ignore", "PYTHON {1}")
        ),
    ],
)
def test_a_fence_within_a_text_of_the_code_closes_no_block(reply: str, code: str) -> None:
    assert code_of(reply) == code


@pytest.mark.parametrize(
    "piece",
    [
        "```py",
        "```py\nx",
        "```py\nx\n",
        "`",
        "```py\n'''\n```\n",
        "```py\n\"\"\"\n```\n\\'''\n",
        "```py\n\\",
        "````py\n```\n",
        "> ```py\n> x\n",
        "~~~py\n```py\n",
        ">>>>",
        "1. - > ",
        "~",
        "``` ",
        "```\n",
        "<answer>",
        "import a, ",
        "```py\ndef f(): g, h\n```\n",
    ],
)
@pytest.mark.parametrize("before", ["```py\n'''\n```\n", "", "<answer>", "```py\ndef g(): h\n```\n~~~~"])
def test_code_is_found_in_a_time_that_grows_with_the_reply_alone(before: str, piece: str) -> None:
    """It is looked for on the event loop of the trainer, where nothing else runs meanwhile."""

    def seconds(times: int) -> float:
        reply = before + piece * times + "`x"
        began = time.process_time()
        code_of(reply)
        return time.process_time() - began

    assert seconds(40_000) < 10 * max(seconds(10_000), 0.05)
