#!/usr/bin/env python3
"""A host without C++ and without LibTorch: it loads a backend and trains a tiny model, all in plain Python.

    python3 host.py /absolute/path/of/serial.so [steps]

The model predicts the next letter of a text from the current letter. Block `embed` looks up a vector for a letter;
block `head` computes a score for every letter from that vector. There is one process with one rank, and everything is
fp64. Any backend works that uses only the callbacks of YokeModel."""
import ctypes as c
import math
import sys

import contract as y

TEXT = "the quick brown fox jumps over the lazy dog and the lazy dog sleeps. " * 4
LETTERS = sorted(set(TEXT))
DIM, SEQUENCE, SEQUENCES = 6, 16, 8


def check(code, error):
    """Ends the program with the text of a failed call."""
    if code != y.OK:
        raise SystemExit(f"host.py: {error.text.decode() or f'code {code}'}")


def text(s):
    """Returns a string of the contract."""
    data = s.encode()
    return y.String(data, len(data))


class TinyModel:
    """The host's side of the contract: the backend owns the memory of the parameters, this class computes."""
    SHAPES = {"embed.weight": (len(LETTERS), DIM), "head.weight": (len(LETTERS), DIM)}

    def __init__(self):
        self.memory = [None, None]  # the arrays of doubles that the backend has bound
        self.saved, self.tensors, self.next = {}, {}, 1
        self.kept = []  # objects that C structs point to, kept alive here
        self.model = y.Model(summary=c.pointer(self.summary()), init_param=y.InitParam(self.guard(self.init_param)),
                             bind_param=y.BindParam(self.guard(self.bind_param)),
                             block_forward=y.Forward(self.guard(self.forward)),
                             block_backward=y.Backward(self.guard(self.backward)),
                             drop_saved=y.DropSaved(lambda ctx, saved: self.saved.pop(saved)))

    def summary(self):
        """Describes the parameters and blocks: one parameter in each block."""
        def pointers(kind, items):
            array = (y.pointer(kind) * len(items))(*[c.pointer(i) for i in items])
            self.kept += [*items, array]
            return array

        params, blocks = [], []
        for i, (name, shape) in enumerate(self.SHAPES.items()):
            sizes, own = (c.c_int64 * 2)(*shape), (c.c_int64 * 1)(i)
            self.kept += [sizes, own]
            params.append(y.Parameter(name=text(name), shape=sizes, ndim=2, dtype=y.F64, trainable=1, decay=1))
            blocks.append(y.Block(name=text(name.split(".")[0]), params=own, num_params=1, activation_bytes=-1,
                                  carry_bytes=-1))
        return y.ModelSummary(params=pointers(y.Parameter, params), num_params=2, blocks=pointers(y.Block, blocks),
                              num_blocks=2, seq_len=SEQUENCE)

    @staticmethod
    def guard(function):
        """Wraps a callback so that an exception becomes a code and a text and does not cross the ABI boundary."""
        def call(ctx, *args):
            try:
                return function(*args[:-1], args[-1]) or y.OK
            except Exception as e:
                if args[-1]:
                    args[-1].contents.code, args[-1].contents.text = y.INTERNAL, str(e).encode()[:4000]
                return y.INTERNAL
        return call

    def init_param(self, param, begin, count, dst, error):
        """Writes initial values, which may be any numbers that are the same in every run."""
        for k in range(count):
            dst[k] = math.sin(1 + param * 1000 + begin + k) * 0.3

    def bind_param(self, param, view, error):
        """Stores the address of a parameter in the backend's memory; None = unbound."""
        self.memory[param] = None if not view else c.cast(
            view.contents.data + view.contents.byte_offset, c.POINTER(c.c_double))

    def rows(self, param):
        """Returns the rows of a bound parameter, each a list of DIM numbers."""
        memory = self.memory[param]
        return [memory[k * DIM:(k + 1) * DIM] for k in range(len(LETTERS))]

    def give(self, values, rows):
        """Returns a tensor [rows, DIM] that the backend owns until it calls the deleter."""
        data = (c.c_double * len(values))(*values)
        key = self.next
        self.next += 1
        managed = y.ManagedTensor(1, 0, key, y.Deleter(self.free), 0,
                                  y.tensor_at(c.addressof(data), (rows, DIM), y.F64))
        self.tensors[key] = (managed, data, managed.tensor.shape)
        return c.pointer(managed)

    def free(self, tensor):
        """The deleter of the tensors that give() returns."""
        del self.tensors[tensor.contents.manager_ctx]

    def ids(self, micro, role):
        """Returns the letter indices of an input, with all sequences concatenated."""
        for i in range(micro.num_inputs):
            if str(micro.inputs[i].role) == role:
                t = micro.inputs[i].tensor
                return c.cast(t.data, c.POINTER(c.c_int64))[:t.shape[0] * t.shape[1]]
        raise ValueError(f"no input {role}")

    def forward(self, args, out, error):
        """Block 0 looks up the vectors of the tokens. Block 1 computes the loss from them."""
        a, o = args.contents, out.contents
        if a.block == 0:
            tokens = self.ids(a.micro.contents, "tokens")
            table = self.rows(0)
            o.carry_out = self.give([v for t in tokens for v in table[t]], len(tokens))
            kept = tokens
        else:
            targets, table = self.ids(a.micro.contents, "targets"), self.rows(1)
            carry = c.cast(a.carry_in.contents.data, c.POINTER(c.c_double))
            kept = []
            for n, target in enumerate(targets):
                x = carry[n * DIM:(n + 1) * DIM]
                scores = [math.exp(sum(p * q for p, q in zip(x, row))) for row in table]
                total = sum(scores)
                probabilities = [s / total for s in scores]
                o.loss_sum -= math.log(probabilities[target])
                probabilities[target] -= 1  # the list is now the gradient of the scores
                kept.append((x, probabilities))
            o.loss_weight = len(targets)
        if a.save:
            o.saved = self.next
            self.saved[self.next] = kept
            self.next += 1

    def backward(self, args, grad_in, error):
        """Reports the gradient of the block's parameter, and returns that of the block's input."""
        a = args.contents
        kept, grad = self.saved.pop(a.saved), [[0.0] * DIM for _ in LETTERS]
        if a.block == 1:
            table, back = self.rows(1), []
            for x, slopes in kept:
                dx = [0.0] * DIM
                for v, slope in enumerate(slopes):
                    for d in range(DIM):
                        grad[v][d] += slope * a.loss_grad * x[d]
                        dx[d] += slope * a.loss_grad * table[v][d]
                back += dx
            grad_in[0] = self.give(back, len(kept))
        else:
            grad_out = c.cast(a.grad_out.contents.data, c.POINTER(c.c_double))
            for n, token in enumerate(kept):
                for d in range(DIM):
                    grad[token][d] += grad_out[n * DIM + d]
        flat = (c.c_double * (len(LETTERS) * DIM))(*[v for row in grad for v in row])
        view = y.tensor_at(c.addressof(flat), (len(LETTERS), DIM), y.F64)
        return a.on_grad_ready(a.on_grad_ctx, a.block, c.byref(view), error)


def make_batch(step):
    """Returns the batch of a step: all sequences in one micro-batch."""
    ids = [LETTERS.index(x) for x in TEXT]
    starts = [(step * SEQUENCES + s) * 7 % (len(ids) - SEQUENCE - 1) for s in range(SEQUENCES)]
    inputs, kept = (y.Input * 2)(), []
    for i, (role, shift) in enumerate((("tokens", 0), ("targets", 1))):
        values = [ids[s + shift + k] for s in starts for k in range(SEQUENCE)]
        data = (c.c_int64 * len(values))(*values)
        tensor = y.tensor_at(c.addressof(data), (SEQUENCES, SEQUENCE), y.I64)
        inputs[i] = y.Input(text(role), tensor)
        kept += [data, tensor]
    micro = y.MicroBatch(inputs=inputs, num_inputs=2, token_weight=SEQUENCES * SEQUENCE)
    micros = (y.pointer(y.MicroBatch) * 1)(c.pointer(micro))
    batch = y.Batch(micros=micros, num_micros=1, token_weight=SEQUENCES * SEQUENCE)
    batch.kept = (kept, inputs, micro, micros)
    return batch


def default_options(description):
    """Returns every option of the backend with its default, as a host passes them."""
    options = (y.Option * description.num_options)()
    for i in range(description.num_options):
        info = description.options[i].contents
        value = str(info.default_value)
        options[i] = y.Option(key=info.key, type=info.type, string_value=info.default_value, content=text(""))
        if value and info.type == y.OPTION_DOUBLE:
            options[i].double_value = float(value)
        elif value and info.type in (y.OPTION_INT, y.OPTION_BOOL):
            options[i].int_value = {"true": 1, "false": 0}.get(value) if info.type == y.OPTION_BOOL else int(value)
    return options


def train(path, steps):
    """Loads a backend, makes the calls of a run in order, and returns the losses."""
    library = c.CDLL(path)
    entry = library.parallel_backend_entry_v1
    entry.restype, entry.argtypes = y.pointer(y.ParallelBackend), [c.c_uint32, y.pointer(y.Error)]
    error = y.Error()
    table = entry(0, c.byref(error))
    if not table or table.contents.abi_major != 1:
        raise SystemExit(f"host.py: {path} returns no table of ABI version 1: {error.text.decode()}")
    backend = table.contents
    described = y.pointer(y.Description)()
    check(backend.describe(c.byref(described), c.byref(error)), error)
    d = described.contents
    print(f"{d.name} {d.version}: {d.summary}")

    tiny = TinyModel()
    optimizer = y.Optimizer(kind=y.ADAMW, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, clip=1.0, lr=0.05)
    plan = y.Plan(optimizer=c.pointer(optimizer), world_size=1, global_batch=SEQUENCES, micro_batch=SEQUENCES,
                  param_dtype=y.F64)
    options = default_options(d)
    reports = []
    refuse = y.Refuse(lambda ctx, r: None if r.contents.note else reports.append(
        f"{r.contents.key} = {r.contents.given}; allowed: {r.contents.allowed}"))
    plan_args = y.PlanArgs(model=tiny.model.summary, options=options, num_options=len(options), refuse=refuse)
    if backend.plan(c.byref(plan_args), c.byref(plan), c.byref(error)) != y.OK:
        raise SystemExit("host.py: the plan was refused: " + "; ".join(map(str, reports)) + " " + error.text.decode())

    host = y.Host(rank=0, world_size=1, device=y.Device(1, 0), log=y.Log(lambda ctx, level, line: print(line)),
                  check_cancel=y.CheckCancel(lambda ctx: 0), get_service=y.GetService(lambda ctx, name, size: None))
    init_args = y.InitArgs(plan=c.pointer(plan), options=options, num_options=len(options), host=c.pointer(host))
    context, result, losses = c.c_void_p(), y.WrapResult(), []
    check(backend.init(c.byref(init_args), c.byref(context), c.byref(error)), error)
    check(backend.wrap_model(context, c.byref(tiny.model), c.byref(result), c.byref(error)), error)
    wrapped = c.c_void_p(result.model)
    for step in range(1, steps + 1):
        batch, out = make_batch(step), y.StepResult()
        args = y.StepArgs(batch=c.pointer(batch), step=step, lr=0.05)
        check(backend.step(wrapped, c.byref(args), c.byref(out), c.byref(error)), error)
        losses.append(out.loss_sum / out.loss_weight)
        if step == 1 or step % 10 == 0:
            print(f"step: {step:3}  loss: {losses[-1]:.4f}  grad_norm: {out.grad_norm:.3f}")
    backend.destroy_model(c.byref(wrapped))
    backend.destroy(c.byref(context))
    if tiny.saved or tiny.tensors:
        raise SystemExit(f"host.py: the backend did not free {len(tiny.saved)} saved states and {len(tiny.tensors)} "
                         "tensors")
    return losses


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: host.py /absolute/path/of/backend.so [steps]")
    history = train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 40)
    print(f"loss {history[0]:.4f} -> {history[-1]:.4f}")
