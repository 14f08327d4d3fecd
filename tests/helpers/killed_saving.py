"""A program that kills saving at random: python tests/helpers/killed_saving.py FOLDER KILLS MIB.

In each round a child resumes from the newest checkpoint, in which every value must equal its
number, and saves checkpoint after checkpoint until it receives SIGKILL. The child is forked,
because TensorFlow takes seconds to import.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import tensorflow as tf

from impala_mm.data.variables import Variables
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.records.run_checkpoints import Checkpoints


def save_for_ever(folder, mib, told):
    """Save checkpoints in the child, and write the number of each to the pipe `told`."""
    size = mib * 2**18 // 2
    trained, carried = ([tf.Variable(tf.zeros([size]))] for _ in range(2))
    checkpoints = Checkpoints(folder, Variables(trained, carried, trained), keep=3)
    found = checkpoints.restore(print, lambda about: None)
    update = found.updates if found else 0
    for variable in (*trained, *carried):
        if not bool(tf.reduce_all(variable == float(update))):
            os.write(told, b"torn\n")
            os._exit(1)
    while True:
        update += 1
        for variable in (*trained, *carried):
            variable.assign(tf.fill([size], float(update)))
        checkpoints.snapshot()
        checkpoints.save(CheckpointInfo(1, {}, {}, {}, updates=update))
        os.write(told, b"%d\n" % update)


def main(folder, kills, mib):
    """Print each round; exit with code 1 if a saved checkpoint is lost or torn."""
    moment = random.Random(1)
    cut = 0
    for kill in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            save_for_ever(folder, mib, write)
        os.close(write)
        with os.fdopen(read) as told:
            first = told.readline()  # the child has begun to save
            time.sleep(moment.uniform(0, 1.5))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            numbers = [first.strip(), *told.read().split()]
        cut += (folder / "checkpoints" / "saving").exists()
        path, about = checkpoint.find(folder)
        print(
            f"kill {kill + 1}: saved {numbers[-1]}, newest complete checkpoint {about.updates}",
            flush=True,
        )
        # One more may have been completed before its number was written to the pipe.
        if numbers[-1] == "torn" or about.updates not in {int(numbers[-1]), int(numbers[-1]) + 1}:
            sys.exit(f"error: {path}")
        if len(checkpoint.all_in(folder / "checkpoints")) > 4:
            sys.exit("error: old checkpoints were not removed")
    print(f"{kills} kills, {cut} of them during a save")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
