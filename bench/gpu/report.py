"""Creates the tables that bench.py prints: one of the rates, one of the kernels of each trace, and one of the ratios to
PyTorch."""
from harness import spread

PRINTED_KERNELS, NAME_WIDTH = 8, 80  # all TOP rows with whole names are in the JSON file
MEMORY_TARGET = "0.97 to 1.03"


def gib(count):
    return "not known" if count is None else f"{count / 2**30:.2f} GiB"


def process_list(processes):
    return ", ".join(f"{own['name'] or 'unknown'} ({own['pid']}, {gib(own['bytes'])})" for own in processes)


def markdown(header, rows):
    return ["", *("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))]


def share(tflops, peak):
    return f"{100 * tflops / peak:.1f} %" if peak else "not known"


def mfu_row(row, card):
    reached, sheet = row["tflops"], card["data_sheet_tflops"]
    memory = f"{gib(row['peak_bytes'])} of {gib(row['predicted_bytes'])}"
    if row["peak_bytes"] is not None:
        memory += f": {row['peak_bytes'] / row['predicted_bytes']:.3f}"
    return [row["workload"], row["variant"], row["limited_by"], spread(row["step_ms"]), f"{row['tokens_per_second']:,.0f}",
            f"{reached['full']:.1f}", f"{share(reached['full'], sheet)}, {share(reached['causal'], sheet)}",
            share(reached["full"], card["gemm_tflops"]), f"{100 * row['target']:.0f} %" if row["target"] else "", memory]


def mfu_table(rows, card):
    header = ["workload", "variant", "limited by", "step, ms", "tokens/s", "TFLOP/s", "MFU of the data sheet, full, causal",
              "MFU of the product", "target (full)", f"peak memory of predicted ({MEMORY_TARGET})"]
    return markdown(header, [mfu_row(row, card) for row in rows])


def kernel_lines(name, figures):
    yield ""
    if figures["kernels"] is None:
        yield f"{name}: no work of a device in the trace"
        return
    table, waits = figures["kernels"], "; ".join(figures["waits_inside"][:3]) or "none"
    yield (f"{name}, {figures['steps']} steps: {table['count']} kernels of {table['kinds']} kinds, "
           f"{table['total_us'] / 1e3:.2f} ms, device idle {100 * figures['idle_share']:.1f} %, launches a step {figures['launches']}, "
           f"attention {figures['attention'] or 'not found'}, waits inside a step: {waits}")
    yield from markdown(["kernel", "count", "total, us", "share"],
                        [[kernel["name"][:NAME_WIDTH].replace("|", "/"), str(kernel["count"]), f"{kernel['total_us']:,.0f}",
                          share(kernel["total_us"], table["total_us"])] for kernel in table["top"][:PRINTED_KERNELS]])


def peer_table(compared, loss_bound):
    header = ["workload", "program", "step, ms", "step rate over PyTorch's", "target",
              f"largest relative difference of losses ({loss_bound:g})", "peak memory"]
    return markdown(header, [
        [name, program if program.startswith("PyTorch") else f"yoke, {program}", spread(own["step_ms"]),
         f"{spread(own['ratio'])}x", f"{own['target']}x" if own["target"] else "",
         f"{own['loss_difference']:.1e}", gib(own["peak_bytes"])]
        for name, programs in compared.items() for program, own in programs.items()])


def tables(results, loss_bound):
    """Returns the lines of all tables. loss_bound is relative."""
    card = results["card"]
    driver = f", driver {card['driver']}" if card["driver"] else ""
    toy = ", TOY SIZES" if results["tiny"] else ""
    lines = [f"{results['date']}, {card['name']}{driver}, torch {card['torch']}, {results['yoke']}{toy}",
             f"bf16 product of {card['gemm_size']}^3: {card['gemm_tflops']:.1f} "
             f"({card['gemm_range'][0]:.1f} .. {card['gemm_range'][1]:.1f}) TFLOP/s"]
    if others := card.get("other_processes"):
        lines.append(f"NOT ALONE: other processes compute on the device: {process_list(others)}")
    lines += mfu_table(results["mfu"], card) if results.get("mfu") else []
    for name, figures in results.get("kernels", {}).items():
        lines += kernel_lines(name, figures)
    lines += peer_table(results["peer"], loss_bound) if results.get("peer") else []
    lines += ["", *(f"FAILED: {name}: {' '.join(text.split())[-300:]}" for name, text in results["failed"].items())]
    return lines + [f"left out, because the budget ended: {name}" for name in results["left_out"]]
