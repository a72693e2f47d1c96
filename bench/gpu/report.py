"""Creates the table that bench.py prints: the measured quantity, its value, and the target."""
from harness import spread


def gib(count):
    return "not known" if count is None else f"{count / 2**30:.2f} GiB"


def memory_row(name, figures, peak):
    share = f"{peak / figures['predicted_bytes']:.3f}" if peak else "not known"
    return [f"peak memory, {name}", f"{gib(peak)}, predicted {gib(figures['predicted_bytes'])}: {share}", "0.97 to 1.03"]


def rate_rows(figures, loss_bound):
    for name, own in figures["programs"].items():
        yield [f"llama-150m, {figures['tokens_per_step']} tokens a step, {name}",
               f"{spread(own['step_ms'])} ms, {own['tokens_per_second']:,.0f} tokens/s", ""]
    for name, own in figures["programs"].items():
        if name == "PyTorch":
            continue
        yield [f"step rate of {name} over eager PyTorch's", f"{spread(own['ratio'])}x", "1.3" if "captured" in name else ""]
        yield [f"largest relative difference of the losses, {name}", f"{own['loss_difference']:.1e}", f"{loss_bound:g}"]
        yield memory_row(f"llama-150m, {name}", figures, own["peak_bytes"])
    yield ["peak memory, llama-150m, eager PyTorch", gib(figures["programs"]["PyTorch"]["peak_bytes"]), ""]


def gaps_rows(figures):
    for name, own in figures.items():
        if own["idle_share"] is None:
            yield [f"traced steps, {name}", "no work of a device in the trace", ""]
            continue
        idle = f"{100 * own['idle_share']:.1f} %, launches a step {own['launches']}"
        yield [f"device idle in a traced step, {name}", idle, ""]
        waits = "; ".join(own["waits_inside"][:3]) or "none"
        yield [f"waits for the device inside a step, {name}", waits, "none"]


def stack_rows(figures, card):
    what = f"{figures['blocks']} Llama-8B-shaped blocks, sequence {figures['seq_len']}"
    yield [what, f"{spread(figures['step_ms'], '.1f')} ms, {figures['tokens_per_second']:,.0f} tokens/s", ""]
    for convention, target in (("full", "50 %"), ("causal", "")):
        reached = figures["flops_per_token"][convention] * figures["tokens_per_second"] / 1e12
        sheet = card["data_sheet_tflops"]
        of_sheet = f", {100 * reached / sheet:.1f} % of the data sheet's {sheet}" if sheet else ""
        yield [f"MFU, 6N + {convention} attention",
               f"{reached:.1f} TFLOP/s: {100 * reached / card['gemm_tflops']:.1f} % of the matrix product's{of_sheet}", target]
    yield memory_row("stack", figures, figures["peak_bytes"])


def table(results, loss_bound):
    """Returns the lines of a Markdown table. loss_bound is relative."""
    card = results["card"]
    product = f"{card['gemm_tflops']:.1f} ({card['gemm_range'][0]:.1f} .. {card['gemm_range'][1]:.1f}) TFLOP/s"
    rows = [["what", "figure", "target"], ["---"] * 3, [f"bf16 product of {card['gemm_size']}^3", product, ""]]
    rows += rate_rows(results["rate"], loss_bound) if "rate" in results else []
    rows += gaps_rows(results["gaps"]) if "gaps" in results else []
    rows += stack_rows(results["stack"], card) if "stack" in results else []
    rows += [[part, " ".join(text.split())[-300:], "FAILED"] for part, text in results["failed"].items()]
    driver = f", driver {card['driver']}" if card["driver"] else ""
    toy = ", TOY SIZES" if results["tiny"] else ""
    return [f"{results['date']}, {card['name']}{driver}, torch {card['torch']}, {results['yoke']}{toy}", "",
            *("| " + " | ".join(row) + " |" for row in rows)]
