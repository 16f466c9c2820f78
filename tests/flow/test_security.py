"""No flow reads a file, a variable of the environment, a module or an address that it was not allowed to.

While a hostile flow is loaded and run, an audit hook of Python sees every file that is opened, every module that is
imported, every process that is started and every connection.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, UsageError
from perdure.authoring.flow.http import AddressRefused, component, is_public
from perdure.authoring.flow.shell import shell
from perdure.flow import FlowInvalid, load_flow
from tests.flow.test_http import moved, serving
from tests.flow.writing import flow_of, problems_of, run

_seen: list[tuple[str, str]] | None = None
WATCHED = (
    "open",
    "import",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "socket.connect",
    "socket.getaddrinfo",
    "os.listdir",
)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None and event in WATCHED:
        _seen.append((event, str(args[0])))


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """What is opened, imported, started and connected to within."""
    global _seen
    found: list[tuple[str, str]] = []
    _seen = found
    try:
        yield found
    finally:
        _seen = None


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a flow in it, beside the folder `flows` that flows are in."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "outside").mkdir()
    secret = tmp_path / "outside" / "secret.yaml"
    secret.write_text("perdure: 1\nname: secret\nsteps: [{id: a, use: value, with: s3cret}]\n")
    (tmp_path / "outside" / "passwd.yaml").write_text("root:x:0:0:s3cret\n")
    (tmp_path / "flows" / "link.yaml").symlink_to(secret)
    (tmp_path / "flows" / "folder").symlink_to(tmp_path / "outside")
    return tmp_path / "flows"


PATHS = [
    "../outside/secret.yaml",
    "./link.yaml",
    "./folder/secret.yaml",
    "./folder/../../outside/secret.yaml",
    "{outside}/secret.yaml",
    "../outside/passwd.yaml",
    "./folder/passwd.yaml",
    "file:///etc/passwd.yaml",
    "/etc/passwd",
    "./%2e%2e/outside/secret.yaml",
    "..\\outside\\secret.yaml",
    "./none.yaml",
]


def test_no_file_outside_of_the_folder_is_opened(outside: Path) -> None:
    for path in PATHS:
        use = path.format(outside=outside.parent / "outside")
        with watched() as seen:
            found = problems_of(outside, f"steps: [{{id: a, use: 'flow:{use}'}}]")
        hidden = str(outside.parent / "outside")
        opened = [os.path.realpath(name) for event, name in seen if event == "open"]
        assert not [name for name in opened if name.startswith((hidden, "/etc/passwd"))], path
        assert [line.split(" ")[2] for line in found] in (["F023"], ["F020"])
        assert "s3cret" not in str(found)


def test_a_flow_below_may_use_one_above_it_in_the_same_folder_and_no_further(outside: Path) -> None:
    (outside / "inner").mkdir()
    (outside / "top.yaml").write_text("perdure: 1\nname: top\nsteps: [{id: a, use: value, with: 1}]\n")
    inner = "perdure: 1\nname: inner\nsteps: [{{id: a, use: 'flow:{}'}}]\n"
    (outside / "inner" / "good.yaml").write_text(inner.format("../top.yaml"))
    (outside / "inner" / "bad.yaml").write_text(inner.format("../../outside/secret.yaml"))
    flow_of(outside, "steps: [{id: a, use: 'flow:./inner/good.yaml'}]")
    assert "outside of the folder" in problems_of(outside, "steps: [{id: a, use: 'flow:./inner/bad.yaml'}]")[0]
    # By itself it has a smaller folder.
    with pytest.raises(FlowInvalid, match="outside of the folder"):
        load_flow(outside / "inner" / "good.yaml", python=())


SCHEMAS = [
    "{$ref: 'file:///etc/passwd'}",
    "{$ref: 'http://169.254.169.254/latest'}",
    "{$ref: ../outside/secret.yaml}",
    "{$ref: /etc/passwd}",
    "{allOf: [{items: {$ref: 'https://example.com/x.json'}}]}",
    "{$dynamicRef: 'http://127.0.0.1/x'}",
    "{$id: 'http://127.0.0.1/', $ref: 'other.json'}",
    "{$schema: 'http://127.0.0.1/schema'}",
]


def test_schemas_fetch_nothing(tmp_path: Path) -> None:
    for schema in SCHEMAS:
        for text in (
            f"inputs: {{a: {{schema: {schema}}}}}\nsteps: [{{id: a, use: value}}]",
            f"schemas: {{A: {schema}}}\ninputs: {{a: {{$ref: '#/schemas/A'}}}}\nsteps: [{{id: a, use: value}}]",
            f"steps: [{{id: a, use: approval, with: {{schema: {schema}}}}}]",
        ):
            with watched() as seen, suppress(FlowInvalid):  # one that is never fetched may do no harm
                flow_of(tmp_path, text)
            assert not [one for one in seen if one[0].startswith("socket") or "passwd" in one[1]], schema


MODULE = """
import os
from os import system
from pathlib import Path as Folder
import functools

half = functools.partial(os.system, "id")
opened = open


def mine(n: int) -> int:
    return n
"""


FUNCTIONS = [
    "os.system",
    "subprocess.run",
    "builtins.eval",
    "securitymine.system",
    "securitymine.os.system",
    "securitymine.half",
    "securitymine.opened",
    "securitymine.Folder",
    "securitymine.__builtins__",
    "securitymine.__loader__",
    "securitymine.__setattr__",
    "securitymine.mine.__globals__",
    "securitymine.mine.__call__",
    "securitymine_other.mine",
    "securityminex.mine",
    ".mine",
    "securitymine..mine",
    "securitymine.mine()",
    "securitymine.${{ input.x }}",
    "perdure.cli.main.main",
]


def test_only_functions_of_allowed_modules_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "securitymine.py").write_text(MODULE)
    (tmp_path / "securitymine_other.py").write_text("raise SystemExit('it was imported')")
    flow_of(tmp_path, OK, python=["securitymine"])
    for use in FUNCTIONS:
        text = f"steps: [{{id: a, use: 'python:{use}', with: {{}}}}]"
        with watched() as seen:
            found = problems_of(tmp_path, text, python=["securitymine"])
        assert {line.split(" ")[2] for line in found} <= {"F020", "F023", "F014"}, use
        assert not [name for event, name in seen if event == "import" and name in ("securitymine_other", "subprocess")]
    del sys.modules["securitymine"]


OK = "steps: [{id: a, use: 'python:securitymine.mine', with: {n: 1}}]"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("steps: [{id: a, use: value, with: '${{ env.HOME }}'}]", "F013"),
        ("steps: [{id: a, use: value, with: '${{ secrets.HOME }}'}]", "F013"),
        ("variables: {t: {secret: T}}\nsteps: [{id: a, use: value, with: '${{ secrets.HOME }}'}]", "F013"),
        ("variables: {t: {secret: T}}\nsteps: [{id: a, use: value, with: 1}]\noutput: ${{ secrets.T }}", "F014"),
        ("variables: {t: {secret: T}}\nsteps: [{id: a, use: value, with: 1}]\noutput: ${{ vars.t }}", "F014"),
        ("variables: {t: {secret: T}}\nsteps: [{id: a, use: value, when: '${{ vars.t == 1 }}'}]", "F014"),
        ("variables: {t: {secret: T}}\nsteps: [{id: a, use: shell, with: {argv: ['${{ vars.t | upper }}']}}]", "F014"),
        ("variables: {t: {secret: T}}\nsteps: [{id: a, use: signal, with: {name: '${{ vars.t }}'}}]", "F002"),
        ("variables: {t: {secret: T, default: x}}\nsteps: [{id: a, use: value}]", "F002"),
        ("steps: [{id: a, use: value, with: {$variable: HOME}}]", "F013"),
        ("steps: [{id: a, use: value, with: '${{ os.environ }}'}]", "F011"),
        ("steps: [{id: a, use: value, with: \"${{ ''.__class__ }}\"}]", ""),
        ("steps: [{id: a, use: value, with: \"${{ input | attr('x') }}\"}]", "F015"),
        ("steps: [{id: a, use: value, with: \"${{ include('/etc/passwd') }}\"}]", "F015"),
    ],
)
async def test_only_declared_variables_of_the_environment_are_read(tmp_path: Path, text: str, code: str) -> None:
    if code:
        assert [line.split(" ")[2] for line in problems_of(tmp_path, text)][:1] == [code]
    else:
        assert (await run(flow_of(tmp_path, text))).result.status == "failed"


async def test_an_input_that_looks_like_a_secret_or_an_expression_is_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECURITY_T", "s3cret-of-env")
    flow = flow_of(
        tmp_path,
        """
inputs: {x: {}}
variables: {t: {secret: SECURITY_T}}
steps:
  - {id: a, use: given, with: {x: "${{ input.x }}", t: "Bearer ${{ vars.t }}"}}
  - {id: b, use: value, with: {from: "${{ steps.a }}"}}
output: ${{ steps.b }}
""",
        components={"given": lambda x, t: {"x": x, "same": t == "Bearer s3cret-of-env"}},
    )
    for given in ({"$secret": "SECURITY_T"}, "${{ secrets.SECURITY_T }}", {"$literal": 1}, [{"$secret": ["a"]}]):
        async with Engine("memory://", [flow]) as engine:
            assert (await engine.run(flow(x=given), id="r")).output == {"from": {"x": given, "same": True}}
            assert "s3cret-of-env" not in str(await engine.journal("r"))


# --- addresses ------------------------------------------------------------------------------------------------------


URLS = [
    "http://localhost/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://0/",
    "http://[::]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[fec0::1]/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1%25lo]/",
    "http://127.0.0.1#@example.com/",
    "http://example.com@127.0.0.1/",
    "http://example.com:80@127.0.0.1:80/",
    "http://example.com\\@127.0.0.1/",
    "http://127.0.0.1:80\\@example.com/",
    "http:///etc/passwd",
    "gopher://127.0.0.1/",
    "HTTP://LOCALHOST/",
    "http://１２７.０.０.１/",
    "http://127.0.0.1\t/",
    "unix:///var/run/docker.sock",
]


async def test_an_address_in_disguise_is_refused_before_anything_is_sent() -> None:
    for url in URLS:
        with watched() as seen, pytest.raises((UsageError, OSError, ValueError)):
            await component([])(url)
        assert not [one for one in seen if one[0] == "socket.connect"]


async def test_one_address_of_several_that_is_not_public_is_enough() -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(AddressRefused):
        await component([], both)("http://both.example/")


async def test_a_name_that_changes_between_check_and_use_is_resolved_once() -> None:
    asked: list[str] = []

    async def changing(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    seen: list[str] = []
    async with serving({}, seen) as port:
        with pytest.raises(Exception, match="answered with 404"):
            await component(["rebind.example"], changing)(f"http://rebind.example:{port}/")
    assert asked == ["rebind.example"]
    assert len(seen) == 1


TARGETS = [
    "http://127.0.0.1:9/",
    "//127.0.0.1:9/",
    "http://169.254.169.254/",
    "file:///etc/passwd",
    "http://[::1]/",
    "http://u:p@h/",
]


async def test_redirects_are_held_to_the_same_rules() -> None:
    for target in TARGETS:

        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"] if host == "h" else [host]

        async with serving({"/": moved(target)}) as port:
            with pytest.raises(UsageError):
                await component([f"h:{port}"], resolve)(f"http://h:{port}/")


async def test_headers_are_neither_split_nor_do_they_choose_the_host() -> None:
    async def local(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    seen: list[str] = []
    async with serving({}, seen) as port:
        http = component(["h"], local)
        for headers in ({"X": "a\r\nEvil: 1"}, {"X\r\nEvil": "1"}):
            with pytest.raises(Exception, match=r"(?i)illegal|invalid|header"):
                await http(f"http://h:{port}/", headers=headers)
        with pytest.raises(Exception, match="404"):
            await http(f"http://h:{port}/", headers={"Host": "inner"})
    assert "evil" not in "".join(seen)
    assert "inner" not in "".join(seen)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def local(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    seen: list[str] = []
    async with serving({}, seen) as port:
        with pytest.raises(Exception, match="404"):
            await component(["h"], local)(f"http://h:{port}/")
    assert len(seen) == 1


def test_what_is_public() -> None:
    for one in (
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "fec0::1",
        "::",
        "0.0.0.0",
        "::ffff:0:7f00:1",
        "ff02::1",
    ):
        assert not is_public(one), one
    assert is_public("64:ff9b::5db8:d822")


# --- commands -------------------------------------------------------------------------------------------------------


ODD_NAMES = [
    "; touch hacked",
    "$(touch hacked)",
    "`touch hacked`",
    "a\ntouch hacked",
    "' ; touch hacked ; '",
    "-rf",
    "*",
    "~",
]


async def test_an_argument_is_one_argument(tmp_path: Path) -> None:
    for name in ODD_NAMES:
        text = """
    inputs: {name: string}
    steps: [{id: a, use: shell, with: {argv: [printf, "%s|%s", "${{ input.name }}", "x"], cwd: FOLDER}}]
    output: ${{ steps.a.stdout }}
    """.replace("FOLDER", str(tmp_path))
        assert (await run(flow_of(tmp_path, text), name=name)).output == f"{name}|x"
        assert not (tmp_path / "hacked").exists()


async def test_a_value_in_a_command_of_a_shell_is_warned_of_and_goes_by_the_environment(tmp_path: Path) -> None:
    text = "inputs: {n: string}\nsteps: [{id: a, use: shell, with: {shell: true, argv: 'echo ${{ input.n }}'}}]"
    assert [one.code for one in flow_of(tmp_path, text).warnings] == ["F024"]
    text = """
inputs: {n: string}
steps: [{id: a, use: shell, with: {shell: true, argv: 'printf %s "$NAME"', env: {NAME: "${{ input.n }}"}}}]
output: ${{ steps.a.stdout }}
"""
    flow = flow_of(tmp_path, text)
    assert not flow.warnings
    assert (await run(flow, n="$(id); `id`")).output == "$(id); `id`"


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"A": "x\0y"}, {"A\0": "1"}])
async def test_an_environment_that_cannot_be_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        await shell(["true"], env=env)
    assert "A" not in os.environ


async def test_a_hostile_flow_starts_nothing_when_it_is_loaded(tmp_path: Path) -> None:
    text = """
steps:
  - {id: a, use: shell, with: {argv: [touch, hacked]}}
  - {id: b, use: http, with: {url: "http://127.0.0.1/"}}
output: ${{ steps.a.stdout }}
"""
    with watched() as seen:
        await asyncio.to_thread(flow_of, tmp_path, text)
    assert not [one for one in seen if one[0] in ("subprocess.Popen", "os.system", "os.exec", "socket.connect")]
