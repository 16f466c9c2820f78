"""What people do on the page: with keys alone where it matters, and told what came of it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from perdure import Engine, connect
from perdure.kernel.events import WaitResolved
from tests.ui import shop
from tests.ui.conftest import Complaints, Served, Shop, copied, noticed


def status(shop_server: Shop, id: str) -> str:
    """The status of a run."""
    view = shop_server.do(shop_server.engine.get(id))
    assert view is not None
    return view.status


def answered(shop_server: Shop, id: str) -> bytes:
    """The answer that a run was given."""
    entries = shop_server.do(shop_server.engine.journal(id))
    waits = [entry.event for entry in entries if isinstance(entry.event, WaitResolved)]
    (resolved,) = (wait for wait in waits if wait.by.startswith("answer:"))
    return bytes(resolved.value)


def tab_to(page: Page, name: str) -> None:
    """Press Tab until a control with this name has the focus, if it has not."""
    focused = """() => {
        const one = document.activeElement;
        return one.matches("body, main, dialog") ? "" : one.labels?.[0]?.innerText || one.innerText;
    }"""
    for _ in range(80):
        if name in page.evaluate(focused):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {name}")


def test_a_question_is_answered_with_the_keyboard_alone(page: Page, shop_server: Shop) -> None:
    shop_server.start(shop.order("kim", 20_000), id="ask-1")
    page.goto(shop_server.page_of("ask-1"))
    expect(page.get_by_role("button", name="Answer")).to_be_visible()
    tab_to(page, "Answer")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="ship")
    expect(dialog.get_by_text("9007199254740993")).to_be_visible()
    tab_to(page, "Approve")
    page.keyboard.press("Space")
    tab_to(page, "Discount")
    page.keyboard.press("Control+A")
    page.keyboard.type("much")
    tab_to(page, "Carrier")
    page.keyboard.type("courier")
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("This is no whole number")).to_be_visible()
    tab_to(page, "Discount")
    page.keyboard.press("Control+A")
    page.keyboard.type("15")
    page.keyboard.press("Enter")
    noticed(page, "Answered ship")
    expect(page.get_by_role("row", name=re.compile("^ship:0, approval, succeeded"))).to_be_visible()
    expected = {"approve": True, "carrier": "courier", "discount": 15, "note": None}
    assert json.loads(answered(shop_server, "ask-1")) == expected


def test_what_the_server_finds_wrong_with_an_answer_stands_at_its_field(
    page: Page, shop_server: Shop, complaints: Complaints
) -> None:
    complaints.expected("/approve", 422)
    shop_server.start(shop.order("kit", 20_000), id="ask-2")
    page.goto(shop_server.page_of("ask-2"))
    page.get_by_role("button", name="Answer").click()
    dialog = page.get_by_role("dialog", name="ship")
    dialog.get_by_label("Approve").check()
    dialog.get_by_label("Carrier").select_option("pickup")
    dialog.get_by_label("Discount").fill("12.5")
    dialog.get_by_role("button", name="Approve").click()
    expect(dialog.get_by_role("alert").first).to_be_visible()
    dialog.get_by_label("Discount").fill("12")
    dialog.get_by_role("button", name="Approve").click()
    noticed(page, "Answered ship")
    expect(page.get_by_role("row", name=re.compile("^ship:0, approval, succeeded"))).to_be_visible()
    assert json.loads(answered(shop_server, "ask-2"))["discount"] == 12


def test_the_inbox_has_all_questions_and_rejecting_takes_a_reason(page: Page, shop_server: Shop) -> None:
    shop_server.start(shop.order("lee", 30_000), id="ask-3")
    page.goto(f"{shop_server.url}approvals")
    expect(page.get_by_role("link", name="ask-3")).to_be_visible()
    page.get_by_role("row", name="ask-3").get_by_role("button", name="Answer").click()
    page.get_by_role("button", name="Reject…").click()
    page.get_by_label("Why not").fill("too dear")
    page.get_by_role("button", name="Reject", exact=True).click()
    expect(page.get_by_role("link", name="ask-3")).to_have_count(0)
    assert "too dear" in str(shop_server.reached("ask-3", "failed").error)


def test_a_run_is_cancelled_with_the_keyboard_alone(page: Page, shop_server: Shop) -> None:
    shop_server.start(shop.naps(shop.LONG), id="cancel-1")
    page.goto(shop_server.page_of("cancel-1"))
    expect(page.get_by_role("row", name=re.compile("^sleep:0"))).to_be_visible()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_visible()
    page.keyboard.press("c")
    expect(page.get_by_role("dialog", name="Cancel the run")).to_be_visible()
    tab_to(page, "Reason")
    page.keyboard.type("not needed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("main").get_by_text("cancelled", exact=True).first).to_be_visible()
    assert shop_server.reached("cancel-1", "cancelled").reason == "not needed"


def test_a_fork_with_another_result_is_made_with_the_keyboard_and_shown_beside_its_origin(
    page: Page, shop_server: Shop
) -> None:
    page.goto(f"{shop_server.page_of('order-18')}?op=ship%3A0")
    expect(page.get_by_role("button", name="Fork from here")).to_be_visible()
    tab_to(page, "Fork from here")
    page.keyboard.press("Enter")
    tab_to(page, "Its result")
    page.keyboard.press("Control+A")
    page.keyboard.type('{"tracking": 9007199254740993}')
    tab_to(page, "Id of the fork")
    page.keyboard.type("fork-1")
    page.keyboard.press("Enter")
    expect(page.get_by_text("They part at ship:0")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^result"))).to_contain_text('{"tracking":9007199254740993}')
    assert shop_server.do(shop_server.engine.get("fork-1")).output == {"tracking": shop.BIG}  # type: ignore[union-attr]
    page.get_by_role("link", name="fork-1").first.click()
    expect(page.get_by_text("fork of")).to_be_visible()


def test_a_step_is_tried_with_other_arguments_and_a_run_from_its_beginning(page: Page, shop_server: Shop) -> None:
    page.goto(f"{shop_server.page_of('broke')}?op=charge%3A0")
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_label("the same, with other arguments for it").check()
    page.get_by_label("Its arguments, by name").fill('{"customer": "ida", "cents": 5, "refusals": 0}')
    page.get_by_label("Id of the fork").fill("fork-2")
    page.get_by_role("button", name="Fork it").click()
    expect(page.get_by_text("They part at charge:0")).to_be_visible()
    page.goto(shop_server.page_of("order-12"))
    expect(page.get_by_role("button", name="Fork")).to_be_visible()
    page.keyboard.press("y")
    page.get_by_label("Its arguments, by name").fill('{"order": {"customer": "mia", "items": [], "cents": 1}}')
    page.get_by_label("Id of the fork").fill("fork-3")
    page.get_by_role("button", name="Fork it").click()
    expect(page.get_by_text("They part at input")).to_be_visible()


def test_signals_pausing_resuming_and_retrying(page: Page, shop_server: Shop) -> None:
    shop_server.start(shop.forever(2), id="tell-1")
    page.goto(shop_server.page_of("tell-1"))
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause it").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Resume it").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("dialog").get_by_label("Signal", exact=True)).to_have_value("stop")
    page.get_by_label("Payload").fill("{")
    expect(page.get_by_text("This is not JSON")).to_be_visible()
    page.get_by_label("Payload").fill('{"now": true}')
    page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("main").get_by_text("completed", exact=True).first).to_be_visible()
    shop_server.do(shop_server.engine.run(shop.close_books(["x"]), id="retry-1"))
    page.goto(shop_server.page_of("retry-1"))
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    page.keyboard.press("e")
    page.get_by_role("button", name="Retry it").click()
    expect(page.get_by_text("incarnation 2")).to_be_visible()


def test_a_run_is_started_from_a_form_made_of_its_parameters(
    page: Page, shop_server: Shop, complaints: Complaints
) -> None:
    complaints.expected("/runs", 422)
    page.goto(f"{shop_server.url}start")
    page.get_by_label("Program").select_option("fulfil")
    page.get_by_label("Customer").fill("nora")
    page.get_by_role("button", name="Add").click()
    page.get_by_label("Items 1", exact=True).fill("lamp")
    page.get_by_label("Cents").fill("9007199254740993")
    page.get_by_text("Id, queue, tags").click()
    page.get_by_label("Id", exact=True).fill("form-1")
    page.get_by_label("Tags").fill("customer:nora")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", name="form-1")).to_be_visible()
    view = shop_server.do(shop_server.engine.get("form-1"))
    assert view is not None
    assert (view.input["order"]["cents"], view.tags) == (shop.BIG, {"customer": "nora"})


def test_many_runs_are_cancelled_with_a_report(page: Page, shop_server: Shop) -> None:
    for number in range(3):
        shop_server.start(shop.naps(shop.LONG), id=f"bulk-{number}", tags={"bulk": "yes"})
    shop_server.do(shop_server.engine.run(shop.echo(1), id="bulk-done", tags={"bulk": "yes"}))
    page.goto(f"{shop_server.url}?tag=bulk%3Ayes")
    for shown in ("bulk-0", "bulk-1", "bulk-2", "bulk-done"):
        expect(page.get_by_role("link", name=shown)).to_be_visible()
    page.get_by_label("Choose all that are shown").check()
    page.get_by_role("region", name="Chosen runs").get_by_role("button", name="cancel…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("it would be")).to_be_visible()
    dialog.get_by_role("button", name=re.compile("^Cancel ")).click()
    expect(dialog.get_by_text(re.compile("Done: 3 done"))).to_be_visible()
    dialog.get_by_role("button", name="Close").last.click()
    for number in range(3):
        expect(page.get_by_role("row", name=f"bulk-{number}").get_by_text("cancelled")).to_be_visible()
    assert status(shop_server, "bulk-done") == "completed"


@pytest.mark.parametrize(
    ("path", "button", "command", "sent"),
    [
        ("order-18", "Fork", "perdure runs fork", "/fork"),
        ("hostile", "Cancel", "perdure cancel", "/cancel"),
    ],
)
def test_every_action_is_had_as_a_command_and_as_a_request(
    page: Page, shop_server: Shop, path: str, button: str, command: str, sent: str
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(shop_server.page_of(path))
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    assert copied(page, dialog.get_by_role("button", name="CLI")).startswith(command)
    request = copied(page, dialog.get_by_role("button", name="curl"))
    assert request.startswith("curl -X POST ")
    assert sent in request


def test_a_capsule_is_imported_and_the_parked_run_is_resolved(
    page: Page, shop_server: Shop, own_shop: Shop, tmp_path: Path
) -> None:
    shop_server.start(shop.forever(1), id="moves")
    file = tmp_path / "moves.capsule"
    file.write_bytes(shop_server.do(shop_server.engine.export("moves")))
    page.goto(f"{own_shop.url}capsule")
    page.get_by_label("Choose a file").set_input_files(file)
    page.get_by_role("link", name="Import it").click()
    dialog = page.get_by_role("dialog", name="Import the capsule")
    expect(dialog.get_by_text("moves.capsule")).to_be_visible()
    dialog.get_by_role("button", name="Import it").click()
    parked = page.get_by_role("region", name="Why it is parked")
    expect(parked).to_be_visible()
    _ = own_shop.reached("moves", "parked")
    parked.get_by_role("button", name="Resolve…").click()
    page.get_by_role("dialog", name="Resolve").get_by_role("button", name="Let it go on").click()
    expect(parked).to_have_count(0)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    _ = own_shop.reached("moves", "waiting")


def test_a_parked_run_is_ended_with_a_reason(
    page: Page, shop_server: Shop, own_shop: Shop, complaints: Complaints
) -> None:
    shop_server.start(shop.forever(2), id="given-up")
    capsule = shop_server.do(shop_server.engine.export("given-up"))
    own_shop.do(own_shop.engine.import_run(capsule))
    page.goto(own_shop.page_of("given-up"))
    page.get_by_role("button", name="Resolve…").click()
    dialog = page.get_by_role("dialog", name="Resolve")
    # What the server refuses is said in the dialog, which stays.
    dialog.get_by_label("let it go on from right before an op").check()
    dialog.get_by_label("Op", exact=True).fill("nothing:9")
    complaints.expected("/resolve", 404)
    dialog.get_by_role("button", name="Let it go on").click()
    expect(dialog.get_by_text("nothing:9").first).to_be_visible()
    dialog.get_by_label("end it as failed").check()
    dialog.get_by_label("Reason, kept in the journal").fill("not needed any more")
    dialog.get_by_role("button", name="End it").click()
    expect(page.get_by_role("main").get_by_text("failed", exact=True).first).to_be_visible()
    _ = own_shop.reached("given-up", "failed")


def test_many_runs_at_once_are_aborted_before_they_are_done(page: Page, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/idle.db"

    # No worker is there to begin it.
    async def opened(served: Served) -> None:
        async with Engine(url):
            pass
        async with connect(url) as client:
            for number in range(3):
                _ = await client.start(shop.forever(number), id=f"idle-{number}")
            served.engine = client  # type: ignore[assignment]
            await served.serve(client.asgi())

    served = Served(opened)
    try:
        page.goto(served.url)
        for number in range(3):
            expect(page.get_by_role("link", name=f"idle-{number}")).to_be_visible()
        page.get_by_label("Choose all that are shown").check()
        page.get_by_role("region", name="Chosen runs").get_by_role("button", name="cancel…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_text("No worker is alive")).to_be_visible()
        dialog.get_by_role("button", name=re.compile("^Cancel ")).click()
        expect(dialog.get_by_text("Under way: 0 done")).to_be_visible()
        dialog.get_by_role("button", name="Abort").click()
        expect(dialog.get_by_role("button", name="Abort")).to_have_count(0)
        expect(dialog.get_by_text("Aborted: 0 done")).to_be_visible()
        assert [status(Shop(served), f"idle-{number}") for number in range(3)] == ["queued"] * 3
    finally:
        page.close()
        served.end()


def test_what_is_done_to_many_runs_is_had_as_a_command_with_the_filters_of_the_list(page: Page, own_shop: Shop) -> None:
    async def many() -> None:
        for number in range(101):
            _ = await own_shop.engine.run(shop.echo(number), id=f"one-of-many-{number}", tags={"of": "many"})

    own_shop.do(many())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{own_shop.url}?tag=of%3Amany&q=one-of&status=completed")
    expect(page.get_by_role("link", name="one-of-many-100")).to_be_visible()
    page.get_by_label("Choose all that are shown").check()
    chosen = page.get_by_role("region", name="Chosen runs")
    chosen.get_by_label("all that fit the filters").check()
    chosen.get_by_role("button", name="signal…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Signal").fill("go")
    command = shlex.split(copied(page, dialog.get_by_role("button", name="CLI")))
    assert command[:6] == ["perdure", "runs", "signal", "go", "--input", "null"]
    asked = ["--id-prefix", "one-of", "--roots", "--status", "completed", "--tag", "of=many"]
    assert sorted(command[6:]) == sorted(asked)


def test_a_backfill_is_had_as_a_command_with_moments_of_the_zone_of_the_page(page: Page, shop_server: Shop) -> None:
    page.goto(shop_server.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Time zone").select_option("Europe/Berlin")
    page.get_by_role("button", name="Close").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{shop_server.url}schedules/nightly")
    page.get_by_role("button", name="Fill in…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-01-10T00:00")
    dialog.get_by_label("Until before").fill("2026-07-13T00:00")
    command = shlex.split(copied(page, dialog.get_by_role("button", name="CLI")))
    # The id, from, and to: it takes no options for them.
    times = ["2026-01-09T23:00:00.000Z", "2026-07-12T22:00:00.000Z"]
    assert command == ["perdure", "schedules", "backfill", "nightly", *times]
