"""Checks the host in Python: its structs against the frozen table, its training against a plain loop, its messages."""
import ctypes
import importlib.util
import json
import re
import subprocess
import sys
import unittest

import numpy as np
import support
from yoke_trainer import Backend, contract
from yoke_trainer.host import AdamW, BackendError

BACKENDS = support.BUILD / "lib/yoke/backends"
FAULTY = support.BUILD / "tests/conformance"
DILOCO, ZERO, TOY = BACKENDS / "diloco.so", BACKENDS / "deepspeed_stub.so", support.BUILD / "tests/abi/toy_on_top.so"
HOST = support.SOURCE / "sdk/examples/python_host/host.py"
ROUNDING = 1e-12  # the order of sums in fp64

spec = importlib.util.spec_from_file_location("host", HOST)
host = importlib.util.module_from_spec(spec)
spec.loader.exec_module(host)


class Layouts(unittest.TestCase):
    """sdk/abi/v1.0/frozen.inc lists what version 1.0 of the contract promises."""
    TABLE = (support.SOURCE / "sdk/abi/v1.0/frozen.inc").read_text()

    def structs(self):
        """Yields the classes with their names in the header."""
        for name, value in vars(contract).items():
            if isinstance(value, type) and issubclass(value, ctypes.Structure) and hasattr(value, "_fields_"):
                yield name if name == "ParallelBackend" else f"Yoke{name}", value

    def test_every_struct_has_the_fields_of_the_contract(self):
        structs = dict(self.structs())
        self.assertGreater(len(structs), 25)
        for name, struct in structs.items():
            frozen = re.findall(rf"FROZEN_FIELD\({name}, (\w+), (\d+), (\d+),", self.TABLE)
            fields = [(field[0], str(getattr(struct, field[0]).offset), str(getattr(struct, field[0]).size))
                      for field in struct._fields_]
            self.assertEqual(fields, frozen, name)
            size = re.search(rf"(?:FROZEN|GROWING)_STRUCT\({name}, (\d+)\)", self.TABLE)[1]
            self.assertEqual(str(ctypes.sizeof(struct)), size, name)

    def test_growing_structs_have_their_ids(self):
        for name, struct in self.structs():
            if f"GROWING_STRUCT({name}," in self.TABLE:
                words = re.findall(r"[A-Z][a-z]+", name.removeprefix("Yoke").removeprefix("Parallel"))
                self.assertIn(f"FROZEN_VALUE(YOKE_ID_{'_'.join(words).upper()}, {struct.ID})", self.TABLE)

    def test_constants_have_the_values_of_the_contract(self):
        for name in ("OK", "INTERNAL", "I64", "F32", "F64", "OPTION_INT", "OPTION_DOUBLE", "OPTION_BOOL", "OPTION_STRING",
                     "OPTION_FILE", "ADAMW", "NUM_AXES", "STEP_FORWARD_ONLY"):
            self.assertIn(f"FROZEN_VALUE(YOKE_{name}, {getattr(contract, name)})", self.TABLE)
        self.assertIn(f"FROZEN_VALUE(YOKE_DEVICE_CPU, {contract.CPU})", self.TABLE)


def plain_losses(model, batches, lr, settings):
    """Trains without any backend: forward, backward, clip and AdamW of whole arrays."""
    parameters = {name: array.astype(np.float32).astype(array.dtype) for name, array in model.parameters.items()}
    first = {name: np.zeros_like(array) for name, array in parameters.items()}
    second = {name: np.zeros_like(array) for name, array in parameters.items()}
    losses = []
    for t, batch in enumerate(batches, start=1):
        carry, saved_0 = model.forward(0, parameters, batch, None)
        loss, saved_1 = model.forward(1, parameters, batch, carry)
        gradients, grad = model.backward(1, parameters, saved_1, 1 / loss.targets)
        gradients |= model.backward(0, parameters, saved_0, grad)[0]
        norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        factor = min(1.0, settings.clip / (norm + 1e-6))
        for name, p in parameters.items():
            g = gradients[name] * factor
            first[name] += (1 - settings.beta1) * (g - first[name])
            second[name] += (1 - settings.beta2) * (g * g - second[name])
            p *= 1 - lr * settings.weight_decay
            root = np.sqrt(second[name] / (1 - settings.beta2**t))
            p -= lr * (first[name] / (1 - settings.beta1**t)) / (root + settings.eps)
        losses.append((loss.sum / loss.targets, norm))
    return losses


def halves(batch):
    """Returns two micro-batches with the sequences of one."""
    return [{role: array[rows] for role, array in batch.items()} for rows in (slice(0, 4), slice(4, 8))]


class Training(unittest.TestCase):
    BATCHES = [host.micro_batch(step) for step in range(1, 21)]
    SETTINGS = AdamW(clip=0.1, weight_decay=0.1)  # both have an effect

    def start(self, backend, model=None, **more):
        return Backend(BACKENDS / f"{backend}.so").start(model or host.TinyModel(), global_batch=8, learning_rate=0.05,
                                                         optimizer=self.SETTINGS, **more)

    def test_the_steps_are_those_of_a_plain_loop(self):
        expected = plain_losses(host.TinyModel(), self.BATCHES, 0.05, self.SETTINGS)
        for name in ("serial", "replicas", "deepspeed_stub"):
            with self.start(name) as training:
                found = [tuple(training.step([batch])) for batch in self.BATCHES]
            np.testing.assert_allclose(found, expected, rtol=ROUNDING * len(found), err_msg=name)

    def test_two_micro_batches_are_one_batch(self):
        with self.start("serial") as training:
            whole = [training.step([batch]).loss for batch in self.BATCHES]
        with self.start("serial") as training:
            parts = [training.step(halves(batch)).loss for batch in self.BATCHES]
        np.testing.assert_allclose(parts, whole, rtol=ROUNDING * len(whole))

    def test_the_learning_rate_of_a_step_can_be_given(self):
        with self.start("serial") as training:
            first = training.step([self.BATCHES[0]], learning_rate=0.0).loss
            self.assertAlmostEqual(training.step([self.BATCHES[0]]).loss, first, delta=1e-15)
            self.assertLess(training.step([self.BATCHES[0]]).loss, first)

    def test_an_evaluation_changes_nothing(self):
        with self.start("serial") as training:
            before = training.evaluate([self.BATCHES[0]])
            self.assertEqual(training.evaluate([self.BATCHES[0]]), before)
            self.assertEqual(training.step([self.BATCHES[0]]).loss, before)
            self.assertLess(training.evaluate([self.BATCHES[0]]), before)

    def test_the_example_trains_with_the_interpreter_of_the_wheel(self):
        for name in ("serial", "replicas"):
            done = subprocess.run([sys.executable, HOST, BACKENDS / f"{name}.so", "30"], capture_output=True, text=True,
                                  check=True)
            self.assertRegex(done.stdout, r"loss 3\.3772 -> 1\.5430")


class Options(support.WheelTest):
    def started(self, **options):
        backend = Backend(ZERO)
        return backend.start(host.TinyModel(), global_batch=8, learning_rate=0.05, options=options)

    def test_a_file_is_passed_with_its_content(self):
        config = self.folder / "ds.json"
        config.write_text(json.dumps({"train_batch_size": 8}))
        self.started(config_file=str(config)).close()
        config.write_text(json.dumps({"train_batch_size": 16}))
        with self.assertRaisesRegex(BackendError, "train_batch_size = 16"):
            self.started(config_file=str(config))

    def test_numbers_and_bools_are_passed(self):
        self.started(zero_stage=2, overlap_comm=True).close()
        given = {"overlap_comm": True, "reduce_scatter": False}
        values = Backend(ZERO)._option_values(given)
        self.assertEqual({str(value.key): value.int_value for value in values if value.given},
                         {"overlap_comm": 1, "reduce_scatter": 0})

    def test_a_value_is_checked_before_it_is_passed(self):
        cases = {
            (DILOCO, "momentum = 1.5; allowed: 0 to 1"): {"momentum": 1.5},
            (DILOCO, "momentum = nan; allowed: 0 to 1"): {"momentum": float("nan")},
            (DILOCO, "local_steps = True; allowed: int"): {"local_steps": True},
            (ZERO, "zero_stage = '2'; allowed: int"): {"zero_stage": "2"},
            (ZERO, "overlap_comm = 1; allowed: bool"): {"overlap_comm": 1},
            (ZERO, "overlap_comm = 'false'; allowed: bool"): {"overlap_comm": "false"},
            (TOY, "colour = 'blue'; allowed: red, green"): {"colour": "blue"}}
        for (path, text), options in cases.items():
            with self.assertRaisesRegex(ValueError, text):
                Backend(path)._option_values(options)

    def test_an_unknown_option_is_refused_with_those_that_exist(self):
        with self.assertRaisesRegex(ValueError, "has no option 'zero'; it has: .*zero_stage"):
            self.started(zero=1)

    def test_defaults_are_listed(self):
        self.assertEqual(Backend(DILOCO).options["local_steps"], "50")


class WrongGradient(host.TinyModel):
    def backward(self, block, parameters, saved, grad):
        return {"head.weight": np.zeros(3)}, None


class Raises(host.TinyModel):
    def forward(self, block, parameters, inputs, carry):
        if block == 1:
            raise ArithmeticError("block 1 cannot")
        return super().forward(block, parameters, inputs, carry)


class Interrupted(host.TinyModel):
    def forward(self, block, parameters, inputs, carry):
        raise KeyboardInterrupt


class ScaledModel(host.TinyModel):
    """Has a parameter without dimensions, whose gradient is a number."""

    def __init__(self):
        super().__init__()
        self.parameters = {**self.parameters, "scale": np.array(1.0)}
        self.blocks = [*self.blocks[:-1], [*self.blocks[-1], "scale"]]

    def backward(self, block, parameters, saved, grad):
        gradients, grad = super().backward(block, parameters, saved, grad)
        return (gradients | {"scale": np.float64(1.0)} if block == 1 else gradients), grad


class Messages(unittest.TestCase):
    def start(self, model, path=BACKENDS / "serial.so"):
        return Backend(path).start(model, global_batch=8, learning_rate=0.05)

    def test_a_library_without_the_entry_is_not_a_backend(self):
        with self.assertRaisesRegex(BackendError, "libm.so.6 is not a backend: it does not export parallel_backend_e"):
            Backend("libm.so.6")

    def test_an_exception_of_an_earlier_call_is_not_the_cause(self):
        with self.start(Raises()) as training:
            with self.assertRaises(BackendError):
                training.step([host.micro_batch(1)])
            with self.assertRaises(BackendError) as caught:
                training._call("step", training._model, None, None)
            self.assertIsNone(caught.exception.__cause__)

    def test_a_backend_of_another_version_is_refused(self):
        for name in ("needs_a_newer_host", "other_major"):
            with self.assertRaisesRegex(BackendError, "this host has ABI 1.0"):
                Backend(FAULTY / f"{name}.so")

    def test_all_refusals_are_reported(self):
        with self.assertRaisesRegex(BackendError, "train.optimizer = adamw; allowed: sgd"):
            self.start(host.TinyModel(), BACKENDS / "signsgd.so")

    def test_an_exception_of_the_model_is_the_cause(self):
        for model, cause, text in ((Raises(), ArithmeticError, "ArithmeticError: block 1 cannot"),
                                   (WrongGradient(), ValueError, "gradient of head.weight has the shape")):
            with self.start(model) as training, self.assertRaisesRegex(BackendError, text) as caught:
                training.step([host.micro_batch(1)])
            self.assertIsInstance(caught.exception.__cause__, cause)

    def test_an_interruption_is_not_hidden_in_a_failure(self):
        with self.start(Interrupted()) as training, self.assertRaises(KeyboardInterrupt):
            training.step([host.micro_batch(1)])

    def test_a_parameter_may_have_no_dimensions(self):
        with self.start(ScaledModel()) as training:
            self.assertGreater(training.step([host.micro_batch(1)]).grad_norm, 1)

    def test_a_call_that_is_wrong_does_not_count_as_a_step(self):
        with self.start(host.TinyModel()) as training, self.start(host.TinyModel()) as other:
            for wrong in ([], [{}]):
                with self.assertRaises(ValueError):
                    training.step(wrong)
            for step in (1, 2):
                self.assertEqual(training.step([host.micro_batch(step)]), other.step([host.micro_batch(step)]))

    def test_a_backend_that_keeps_tensors_is_reported(self):
        training = self.start(host.TinyModel(), FAULTY / "keeps_carries.so")
        training.step([host.micro_batch(1)])
        with self.assertRaisesRegex(BackendError, r"did not free \d+ tensors or saved states"):
            training.close()

    def test_parameters_and_inputs_have_allowed_dtypes(self):
        model = host.TinyModel()
        model.parameters = {**model.parameters, "head.weight": host.initial(1).astype(np.float32)}
        with self.assertRaisesRegex(ValueError, "parameters of float32, float64; allowed: all float32 or all float64"):
            self.start(model)
        with self.start(host.TinyModel()) as training:
            with self.assertRaisesRegex(ValueError, "needs an input 'targets'; it has: tokens"):
                training.step([{"tokens": np.zeros((8, 16), np.int64)}])
            with self.assertRaisesRegex(ValueError, "the input 'targets' has the dtype int8; allowed: int64, float32"):
                training.step([{"targets": np.zeros((8, 16), np.int8)}])


if __name__ == "__main__":
    unittest.main()
