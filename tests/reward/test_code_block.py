"""Code is found in a reply where people see it, and in no more time than it takes to read the reply."""

from __future__ import annotations

import time

import pytest

from rlhf.reward.code_block import code_of

DOCUMENTED = 'def f():\n    """As in\n    ```python\n    f()\n    ```\n"""\n    return "```"  # ```\n'


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
    ],
)
def test_code_is_found_in_a_time_that_grows_with_the_reply_alone(piece: str) -> None:
    """It is looked for on the event loop of the trainer, where nothing else runs meanwhile."""

    def seconds(times: int) -> float:
        reply = "```py\n'''\n```\n" + piece * times
        began = time.process_time()
        code_of(reply)
        return time.process_time() - began

    assert seconds(40_000) < 10 * max(seconds(10_000), 0.05)
