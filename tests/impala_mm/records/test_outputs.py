"""The user's own command receives the events of a run and cannot harm it."""

from deadlines import within
from supervising import until

from impala_mm.records.outputs import EventHook


def _wait(path, lines):
    until(lambda: path.exists() and len(path.read_text().splitlines()) >= lines, 20)
    return path.read_text().splitlines()


def test_the_command_gets_event_folder_and_message_and_its_output_is_kept(tmp_path):
    folder = tmp_path / "a run"
    folder.mkdir()
    command = 'echo "$IMPALA_MM_EVENT|$IMPALA_MM_LOGDIR|$IMPALA_MM_MESSAGE"; echo oh >&2'
    events = EventHook(command, folder, print)
    events.call("save", "checkpoint at update 3; 'quoted' $HOME")
    log = _wait(folder / "on_event.log", 2)
    assert log == [f"save|{folder}|checkpoint at update 3; 'quoted' $HOME", "oh"]


def test_a_command_that_never_ends_is_neither_waited_for_nor_piled_up(tmp_path):
    said = []
    events = EventHook(f"echo here >> '{tmp_path}/calls'; exec sleep 600", tmp_path, said.append)
    with within(10):
        for _ in range(9):
            events.call("save", "m")
    try:
        assert said == ["--on_event: 8 calls have not ended yet; save is not reported"]
        assert len(_wait(tmp_path / "calls", 8)) == 8
    finally:
        for process in events._running:
            process.kill()
            process.wait()
