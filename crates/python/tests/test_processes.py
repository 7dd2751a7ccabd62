"""Threads that call one program, and processes forked or spawned from one that has a program open."""

import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import random
import sys
import sysconfig
import tempfile
import threading
import time
import unittest
import warnings

import pteron
from common import DIGITS, corpus, floats

PICTURE = floats([1, 1, 8, 8], [0.5] * 64)


def scores(module):
    return module(PICTURE)[0].tolist()


def zeros(meta):
    """Inputs of zeros for a method whose inputs are all tensors."""
    infos = [value.tensor for value in meta.inputs]
    return [pteron.Tensor(bytes(info.nbytes), info.dtype, info.shape) for info in infos]


class Threads(unittest.TestCase):
    def test_threads_share_a_program(self):
        module = pteron.load(DIGITS)
        expected = scores(module)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: scores(module), range(200)))
        self.assertTrue(all(result == expected for result in results))

    def test_threads_take_turns_with_state(self):
        module = pteron.load(corpus("tiny/mutable_initialized"))
        method = module.method(module.method_names[0])
        inputs = zeros(pteron.method_meta(module, method.name))
        alone = pteron.load(corpus("tiny/mutable_initialized")).method(method.name)
        expected = sorted(str([t.tolist() for t in alone(*inputs)]) for _ in range(32))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda _: str([t.tolist() for t in method(*inputs)]), range(32))
        self.assertEqual(sorted(results), expected)

    def test_threads_do_different_things(self):
        module = pteron.load(DIGITS)
        shared = pteron.Tensor([0.5] * 64, shape=[1, 1, 8, 8])
        method = module.forward
        expected = scores(module)
        ways = [
            lambda: scores(module),
            lambda: module(shared)[0].tolist(),
            lambda: method(memoryview(shared))[0].tolist(),
            lambda: scores(pickle.loads(pickle.dumps(module))),
            lambda: module.restore(module.snapshot()) or scores(module),
            lambda: pteron.inspect(DIGITS).methods[0].name and expected,
            lambda: gc.collect() and expected or expected,
        ]

        def work(seed):
            order = random.Random(seed)
            return [order.choice(ways)() == expected for _ in range(100)]

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(work, range(4)))
        self.assertTrue(all(map(all, results)))

    @unittest.skipUnless(sysconfig.get_config_var("Py_GIL_DISABLED"), "this Python has a GIL")
    def test_the_gil_stays_off(self):
        self.assertFalse(sys._is_gil_enabled())

    def test_other_threads_run_during_a_call(self):
        module = pteron.load(corpus("models/unet_small"))
        inputs = zeros(pteron.method_meta(module))
        module(*inputs)
        turns, stop = 0, threading.Event()

        def count():
            nonlocal turns
            while not stop.is_set():
                turns += 1
                time.sleep(0)

        other = threading.Thread(target=count)
        other.start()
        before = turns
        for _ in range(20):
            module(*inputs)
        during = turns - before
        stop.set()
        other.join()
        self.assertGreater(during, 20)


def in_child(module, results):
    results.put(scores(module))


@unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
class Forks(unittest.TestCase):
    def run_forked(self, act):
        """The result of `act` in a forked process."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # The child does not use the other threads of this process.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                os.write(writer, repr(act()).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(child, 0)
        return text

    def test_programs_work_after_a_fork(self):
        for threads in (1, 2):
            module = pteron.load(DIGITS, threads=threads)
            expected = scores(module)
            self.assertEqual(self.run_forked(lambda: scores(module)), repr(expected))
            self.assertEqual(scores(module), expected)

    def test_state_survives_a_fork(self):
        for threads in (1, 2):
            module = pteron.load(corpus("tiny/mutable_initialized"), threads=threads)
            method = module.method(module.method_names[0])
            inputs = zeros(pteron.method_meta(module, method.name))
            method(*inputs)

            def step():
                return [t.tolist() for t in method(*inputs)]

            forked = self.run_forked(step)
            self.assertEqual(forked, repr(step()))


class Spawns(unittest.TestCase):
    def test_a_module_is_sent_to_a_spawned_process(self):
        module = pteron.load(DIGITS, mmap=True)
        context = multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        child = context.Process(target=in_child, args=(module, results))
        child.start()
        self.assertEqual(results.get(), scores(module))
        child.join()

    def test_the_cache_compiles_once_per_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            module = pteron.load(DIGITS, cache=folder)
            expected = scores(module)
            for got, wanted in zip(expected[0], scores(pteron.load(DIGITS))[0]):
                self.assertAlmostEqual(got, wanted, places=5)
            before = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)}
            self.assertEqual(sum(name.endswith(".pte") for name in before), 1)
            context = multiprocessing.get_context("spawn")
            results = context.SimpleQueue()
            child = context.Process(target=in_child, args=(module, results))
            child.start()
            self.assertEqual(results.get(), expected)
            child.join()
            after = {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in os.listdir(folder)}
            self.assertEqual(after, before)
            with self.assertRaises(pteron.errors.InputError), open(DIGITS, "rb") as file:
                pteron.load(file.read(), cache=folder)


if __name__ == "__main__":
    unittest.main()
