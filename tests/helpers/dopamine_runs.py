"""Folders of runs with the checkpoints that the real Dopamine wrote (`make_dopamine_fixture`)."""

import lzma

from processes import ROOT

WRITTEN = ROOT / "tests" / "impala_mm" / "teachers" / "dopamine"


def unpack(folder, kind):
    """Write the checkpoint of an agent, "dqn" or "rainbow", to a new folder; return it."""
    (folder / "checkpoints").mkdir(parents=True)
    content = lzma.decompress((WRITTEN / f"{kind}.xz").read_bytes())
    (folder / "checkpoints" / "ckpt.3").write_bytes(content)
    (folder / "checkpoints" / "sentinel_checkpoint_complete.3").write_text("done")
    return folder
