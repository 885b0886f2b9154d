"""Hidden elements: what padding makes of values of any layout counts in no statistic or scale."""

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import T5Config, T5Model

from chop import MaseGraph, passes
from chop.captured.padding.hidden import following, hidden_elements
from chop.captured.padding.masks import hidden_inputs, visible_tokens
from chop.formats import Integer, QuantSpec
from chop.problems.mixed_precision.layer_sensitivity import Sensitivity
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.quantization.calibration import sample_operands

WIDTH, PAD = 8, 0
LENGTHS = (6, 4, 1, 3)
AUTO = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": "auto"}}}
CHANNEL = {"dims": [0, 1]}


def tokens(lengths=LENGTHS, is_left=False, seed=0, size=6):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (len(lengths), size), generator=generator)
    places, ends = torch.arange(size), torch.tensor(lengths)[:, None]
    mask = (places >= size - ends if is_left else places < ends).long()
    return ids * mask, mask


class Heads(nn.Module):
    """Attention over scores, heads apart, its mask filled in or added."""

    def __init__(self, adds):
        super().__init__()
        self.adds, self.ids = adds, nn.Embedding(20, WIDTH)
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, input_ids, attention_mask):
        x = self.ids(input_ids)
        q = self.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
        shown = attention_mask[:, None, None, :]
        scores = q @ q.transpose(-1, -2)
        if self.adds:
            scores = scores + (1 - shown) * torch.finfo(x.dtype).min
        else:
            scores = scores.masked_fill(shown == 0, -1e4)
        return self.out((scores.softmax(-1) @ q).transpose(1, 2).flatten(2))


class Layouts(nn.Module):
    """Tokens in one row, after channels, ahead of the batch; one token is put ahead of them."""

    def __init__(self):
        super().__init__()
        self.ids, self.flat = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.conv, self.first = nn.Conv1d(WIDTH, WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.start, self.norm = nn.Parameter(torch.ones(1, 1, WIDTH)), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, input_ids, attention_mask):
        rows, size = input_ids.shape
        x = self.flat(self.ids(input_ids).reshape(rows * size, WIDTH)).relu().view(rows, size, -1)
        x = x + self.conv(x.mT).mT
        x = torch.cat([self.start.expand(rows, -1, -1), x], 1)
        x = self.norm(self.first(x.transpose(0, 1)).transpose(0, 1))
        mask = F.pad(attention_mask, (1, 0), value=1)
        return x[:, 0] + self.attention(x, x, x, key_padding_mask=mask == 0)[0][:, 0]


class Pooled(nn.Module):
    """A recurrent layer, weights of tokens, a mean over the tokens that count."""

    def __init__(self, recurrent):
        super().__init__()
        self.ids, self.layer = nn.Embedding(20, WIDTH), recurrent(WIDTH, WIDTH, batch_first=True)
        self.weigh, self.head = nn.Linear(WIDTH, 1), nn.Linear(2 * WIDTH, 3)

    def forward(self, input_ids, attention_mask):
        x, _ = self.layer(self.ids(input_ids))
        shown = attention_mask[..., None].to(x.dtype)
        weights = self.weigh(x).masked_fill(shown == 0, -torch.inf).softmax(1)
        mean = (x * shown).sum(1) / shown.sum(1)
        last = x[torch.arange(x.shape[0]), attention_mask.sum(1) - 1]
        return self.head(torch.cat([(weights * x).sum(1) + last, mean], -1))


class Translator(nn.Module):
    """An encoder and a decoder with masks of their own."""

    def __init__(self, batch_first):
        super().__init__()
        self.ids = nn.Embedding(20, WIDTH)
        self.both = nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=batch_first)

    def forward(self, src, tgt, src_key_padding_mask, tgt_key_padding_mask):
        return self.both(
            *(self.ids(src), self.ids(tgt)),
            src_key_padding_mask=src_key_padding_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=src_key_padding_mask,
        )


def named(is_left=False, **settings):
    ids, mask = tokens(is_left=is_left, **settings)
    return {"input_ids": ids, "attention_mask": mask}


def translated(batch_first, size=6):
    (ids, mask), (target, shown) = tokens(size=size), tokens((2, size, 3, 1), seed=1, size=size)
    both = {"src": ids, "tgt": target} if batch_first else {"src": ids.T, "tgt": target.T}
    return {**both, "src_key_padding_mask": mask == 0, "tgt_key_padding_mask": shown == 0}


def of_t5():
    ids, mask = tokens()
    target, shown = tokens((2, 6, 3, 1), seed=1)
    masks = {"attention_mask": mask, "decoder_attention_mask": shown}
    return {"input_ids": ids, "decoder_input_ids": target, **masks}


def t5():
    sizes = {"d_model": WIDTH, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5Model(T5Config(vocab_size=20, **sizes))


CASES = {
    "heads": (lambda: Heads(False), named()),
    "left": (lambda: Heads(False), named(True)),
    "added": (lambda: Heads(True), named()),
    "square": (lambda: Heads(False), named(lengths=(6, 4, 1, 3, 2, 5))),
    "layouts": (Layouts, named()),
    "gru": (lambda: Pooled(nn.GRU), named()),
    "lstm": (lambda: Pooled(nn.LSTM), named()),
    "translator": (lambda: Translator(True), translated(True)),
    "tokens first": (lambda: Translator(False), translated(False)),
    "square tokens first": (
        lambda: Translator(False),
        {
            name: x[:4] if name.endswith("mask") else x[:, :4]
            for name, x in translated(False).items()
        },
    ),
    "transformers": (t5, of_t5()),
}


GRAPHS = {}


def graph_of(make, inputs, pad=None, dtype=torch.float32):
    """A copy of the graph of a model, with embeddings of the padding token of a size."""
    if (make, dtype) not in GRAPHS:
        torch.manual_seed(0)
        GRAPHS[make, dtype] = MaseGraph(make().eval().to(dtype), dummy_in=inputs)
    mg = GRAPHS[make, dtype].copy()
    with torch.no_grad():
        for table in (m for m in mg.model.modules() if isinstance(m, nn.Embedding)):
            if pad is not None and table.num_embeddings == 20:
                table.weight[PAD] = pad * torch.linspace(-1, 2, table.embedding_dim)
    return mg


def list_operands(mg, batches):
    """Collects what reaches all operands that are no parameters."""
    quantized, _ = passes.quantize_transform_pass(mg, AUTO)
    steps = {n: m for n, m in quantized.model.named_modules() if hasattr(m, "spec")}
    wanted = {
        name: [o for o, _ in step.spec.items() if o not in dict(step.named_parameters())]
        for name, step in steps.items()
    }
    found = sample_operands(quantized.model, batches, wanted)
    return {(name, operand): x for name, seen in found.items() for operand, x in seen.items()}


QUICK = ("added", "layouts", "gru")  # the others show one thing more each


@pytest.mark.filterwarnings("ignore::chop.ir.unreached.UnreachedWarning")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] * (case not in QUICK)) for case in CASES]
)
def test_no_value_of_hidden_tokens_reaches_an_observer(case):
    make, inputs = CASES[case]
    small, large = (list_operands(graph_of(make, inputs, pad), [inputs]) for pad in (1e-3, 1e5))
    assert small.keys() == large.keys() and len(small) > 5
    for key, x in small.items():
        assert torch.equal(x, large[key]), key


@pytest.mark.filterwarnings("ignore::chop.ir.unreached.UnreachedWarning")
@pytest.mark.parametrize(
    "case",
    ["left", "layouts", *(pytest.param(case, marks=pytest.mark.long) for case in ("heads", "gru"))],
)
def test_all_values_of_the_other_tokens_do(case):
    make, inputs = CASES[case]
    mg = graph_of(make, inputs, 1e5)
    shown = inputs["attention_mask"].bool()
    alone = [
        {name: x[row : row + 1, shown[row]] for name, x in inputs.items()}
        for row in range(len(shown))
    ]
    padded, single = list_operands(mg, [inputs]), list_operands(mg, alone)
    for key, x in single.items():
        assert len(padded[key]) == len(x), key
        ends = torch.stack(padded[key].aminmax()), torch.stack(x.aminmax())
        torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("static", [False, True])
def test_scales_are_those_of_a_padding_row_of_small_numbers(static, dtype):
    make, inputs = CASES["heads"]
    format_ = {"name": "scale_integer", "width": 8, "granularity": "tensor"} if static else None
    rules = {"by": "type", "default": {"config": format_}} if static else AUTO
    specs = []
    for pad in (1e-3, 1e4):
        mg, _ = passes.quantize_transform_pass(graph_of(make, inputs, pad, dtype), rules)
        mg = copy.deepcopy(mg) if static else mg
        settings = {"batches": [inputs, named(seed=3)], "static_scales": static}
        mg, info = passes.calibrate_transform_pass(mg, settings)
        again, _ = passes.calibrate_transform_pass(mg, settings)
        assert info["static" if static else "fitted"] > 5
        for found in (mg, again):
            modules = found.model.named_modules()
            specs.append(
                {
                    (name, operand): quantizer
                    for name, m in modules
                    if hasattr(m, "spec")
                    for operand, quantizer in m.spec.items()
                    if operand not in ("weight", "bias") or name != "ids"
                }
            )
    assert all(found == specs[0] for found in specs[1:])


@pytest.mark.parametrize(
    "statistics",
    [
        {"range_min_max": {}, "variance_online": {}, "histogram": {}, "range_quantile": {}},
        {"range_min_max": CHANNEL, "variance_precise": CHANNEL, "abs_mean": CHANNEL},
    ],
)
def test_statistics_of_nodes_leave_hidden_tokens_out(statistics):
    make, inputs = CASES["heads"]
    found = []
    for pad in (1e-3, 1e5):
        settings = {
            "target_activation_nodes": ["linear"],
            "activation_statistics": statistics,
            "input_generator": [inputs],
            "quiet": True,
        }
        mg = graph_of(make, inputs, pad)
        found.append(passes.profile_statistics_analysis_pass(mg, settings)[1]["statistics"])
    count = found[0]["query"]["args"]["data_in_0"]["range_min_max"]["count"]
    assert count == sum(LENGTHS) * (WIDTH if CHANNEL not in statistics.values() else 1)
    flat = [
        [
            x
            for side in one.values()
            for of in side.values()
            for s in of.values()
            for x in s.values()
        ]
        for all_ in found
        for one in all_.values()
    ]
    half = len(flat) // 2
    for small, large in zip(flat[:half], flat[half:], strict=True):
        for x, y in zip(small, large, strict=True):
            assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))


def test_pruning_of_activations_and_by_inputs_leaves_hidden_tokens_out():
    make, inputs = CASES["heads"]
    thresholds, masks = [], []
    for pad in (1e-3, 1e5):
        mg, _ = passes.prune_transform_pass(
            graph_of(make, inputs, pad),
            {
                "activation": {"sparsity": 0.5, "scope": "global", "method": "l1-norm"},
                "batches": [inputs],
            },
        )
        thresholds += [m.threshold for m in mg.model.modules() if hasattr(m, "threshold")]
        wanda = {"weight": {"sparsity": 0.5, "method": "wanda"}, "batches": [inputs]}
        mg, _ = passes.prune_transform_pass(graph_of(make, inputs, pad), wanda)
        masks.append(mg.modules["query"].weight_mask)
    assert len(set(thresholds)) == 1 and torch.equal(*masks)


class Classifier(Heads):
    """Answers of the tokens that count, averaged."""

    def forward(self, input_ids, attention_mask):
        shown = attention_mask[..., None]
        return (super().forward(input_ids, attention_mask) * shown).sum(1) / shown.sum(1)


@pytest.mark.long
def test_sensitivities_leave_hidden_tokens_out():
    rows = {name: list(x) for name, x in named().items()} | {"labels": [0, 1, 2, 1]}
    found = []
    for pad in (1e-3, 1e4):
        mg = graph_of(lambda: Classifier(False), named(), pad)
        mg, _ = passes.init_metadata_analysis_pass(mg)
        mg, _ = passes.add_common_metadata_analysis_pass(mg)
        formats = ["4.mse", "mxint:width=4", "scale_integer:width=4"]
        problem = PrecisionProblem(mg, rows, rows, formats=formats, operators=("linear", "matmul"))
        probe = Sensitivity(problem, rows, ["fisher", "activation_variance"])
        found.append([probe.measure(*pair) for pair in problem.pairs])
    assert len(found[0]) >= 6
    for small, large in zip(*found, strict=True):
        assert small["fisher"] == large["fisher"] > 0
        variances = small["activation_variance"], large["activation_variance"]
        torch.testing.assert_close(*variances, rtol=0, atol=0, equal_nan=True)


ROUNDED = [
    pytest.param(method, case, marks=[pytest.mark.long] * ((method, case) != ("gptq", "layouts")))
    for method in ("gptq", "awq", "smoothquant", "learned_rounding")
    for case in ("heads", "layouts")
]


@pytest.mark.parametrize("method, case", ROUNDED)
def test_methods_of_rounding_leave_hidden_tokens_of_any_layout_out(method, case):
    make, inputs = CASES[case]
    rules = {"by": "type", "linear": {"config": {"weight": {"name": "group_integer", "width": 3}}}}
    weights = []
    for pad in (1e-3, 1e3):
        mg = graph_of(make, inputs, pad)
        if method in ("gptq", "learned_rounding"):
            mg, _ = passes.quantize_transform_pass(mg, rules)
        settings = {"batches": [inputs]}
        if method == "awq":
            settings |= {"weight": "mxint:width=3", "grid": 2}
        if method == "learned_rounding":
            settings |= {"steps": 3}
        mg, _ = getattr(passes, f"{method}_transform_pass")(mg, settings)
        weights.append(
            {n: m.weight for n, m in mg.model.named_modules() if isinstance(m, nn.Linear)}
        )
    assert len(weights[0]) > 1
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


@pytest.mark.parametrize("inputs", [{}, {"attention_mask": torch.ones(4, 6, dtype=torch.long)}])
def test_a_batch_without_padding_is_not_followed(inputs):
    batch = {"input_ids": tokens()[0], **inputs}
    with following(None, batch) as given:
        assert given is batch
        assert torch._C._len_torch_dispatch_stack() == 0
        assert hidden_elements(batch["input_ids"]) is None


OPERATIONS = {
    "view": lambda x: x.view(12, 2),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 4, 1, 2)) * 2),
    "written": lambda x: torch.zeros(4, 4).index_copy(0, torch.tensor([2, 0, 1]), x[:, :, 0]),
    "in place": lambda x: x.clone().transpose(0, 1).mul_(2).add_(1),
    "strided": lambda x: x[:, ::2],
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(1),
    "sort": lambda x: (-x.abs()).sort(1)[0],
    "mean": lambda x: x.mean(-1),
    "stack": lambda x: torch.stack([x, x * 0 + 1]),
    "einsum": lambda x: torch.einsum("btc,dc->tbd", x, torch.ones(3, 2)),
    "pad": lambda x: F.pad(x, (0, 0, 1, 0), value=7.0),
    "where": lambda x: torch.where(torch.ones(3, 1, 2, dtype=torch.bool), x, 0),
    "gather": lambda x: x.gather(1, torch.tensor([3, 0]).expand(3, 2)[..., None].expand(3, 2, 2)),
    "index": lambda x: x[torch.arange(3), torch.tensor([3, 0, 2])],
    "pool": lambda x: F.avg_pool1d(x.mT, 2).mT,
    "stride": lambda x: F.conv1d(x.mT, torch.ones(3, 2, 2), stride=2),
    "reused memory": lambda x: [x * i for i in range(600)][-1],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operator_says_what_hidden_elements_have_made(name):
    """Numbers of hidden tokens are NaN: elements that are NaN then were made by them."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]])
    x = torch.arange(1.0, 25).view(3, 4, 2)
    with following(None, {"x": x, "attention_mask": mask}) as given:
        result = OPERATIONS[name](given["x"])
        hidden = hidden_elements(result)
    expected = OPERATIONS[name](x.masked_fill(mask[..., None] == 0, torch.nan)).isnan()
    if name == "sort":
        expected = OPERATIONS[name](x.masked_fill(mask[..., None] == 0, 100)) == -100
    assert hidden is not None
    assert torch.equal(hidden, expected)
    assert hidden_elements(result) is None


MASKS = {
    "causal": torch.ones(6, 6).tril().bool() & tokens()[1].bool()[:, None, None, :],
    "keys": tokens()[1].bool()[:, None, None, :],
    "three": tokens()[1][:, None, :].expand(-1, 6, -1),
    "added": (1 - tokens()[1].float())[:, None, None, :] * torch.finfo(torch.float32).min,
    "infinite": torch.zeros(4, 1, 1, 6).masked_fill(tokens()[1][:, None, None] == 0, -torch.inf),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_queries_and_keys_hide_what_no_query_sees(name):
    batch = {"input_ids": tokens()[0], "attention_mask": MASKS[name]}
    found = hidden_inputs(None, batch)
    assert torch.equal(found["input_ids"], tokens()[1] == 0)
    expected = (tokens()[1] == 0)[:, None, None] if MASKS[name].dim() == 4 else None
    if expected is not None:
        assert torch.equal(found["attention_mask"], expected)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(6, 6).tril()[None, None],  # every key is seen by a later query
        torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + 0.1,  # biases
        torch.ones(4, 3, 5, dtype=torch.long),  # of pixels
    ],
)
def test_other_masks_hide_nothing(mask):
    assert hidden_inputs(None, {"input_ids": tokens()[0], "attention_mask": mask}) == {}
    assert all(bool(kept.all()) for kept in visible_tokens({"attention_mask": mask}).values())


def test_features_ahead_of_time_and_pictures_have_their_own_place():
    mask = tokens((5, 3), size=5)[1]
    sound, pictures = torch.zeros(2, 8, 5), torch.zeros(2, 5, 4, 4)
    found = hidden_inputs(None, {"x": sound, "pixels": pictures, "attention_mask": mask})
    assert found.keys() == {"x", "attention_mask"}
    assert torch.equal(found["x"], (mask == 0)[:, None])


def test_a_decoder_without_a_mask_is_not_hidden_by_that_of_the_encoder():
    inputs = {name: x for name, x in of_t5().items() if name != "decoder_attention_mask"}
    assert hidden_inputs(None, inputs).keys() == {"input_ids", "attention_mask"}


def test_quantized_formats_are_unchanged_where_nothing_is_hidden():
    make, inputs = CASES["heads"]
    whole = {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}
    mg, _ = passes.quantize_transform_pass(graph_of(make, inputs), AUTO)
    fitted, _ = passes.calibrate_transform_pass(mg, {"batches": [whole]})
    seen = []
    hook = mg.modules["out"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    mg.modules["out"].spec = QuantSpec()
    sample_operands(mg.model, [whole], {})
    hook.remove()
    assert fitted.modules["out"].spec.data_in == Integer(8, "auto").fitted(seen[0])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([0, 0, 1, 1, 1, 1], [0, 0]), ([0, 1, 2, 0, 2, 2], [0, 0, 1]), ([0, 0, 1, 0, 1, 1], [0, 1])],
)
@pytest.mark.parametrize("how", ["index_add", "scatter_add"])
def test_a_sum_is_hidden_if_all_of_its_terms_are(how, rows, expected):
    x, into, index = torch.randn(2, 3, 4), torch.zeros(len(expected), 4), torch.tensor(rows)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    with following(nn.Identity(), {"inputs_embeds": x, "attention_mask": mask}) as batch:
        flat = batch["inputs_embeds"].reshape(-1, 4)
        index = index if how == "index_add" else index[:, None].expand(-1, 4)
        found = hidden_elements(getattr(into, how)(0, index, flat))
    found = torch.zeros(len(expected), 4) if found is None else found
    assert found.long().tolist() == [[hidden] * 4 for hidden in expected]


def test_hidden_indices_hide_what_they_choose_counted_from_the_end():
    mask = torch.tensor([[1, 1, 0]])
    given = {"input_ids": torch.tensor([[0, 1, 2]]), "attention_mask": mask}
    with following(nn.Identity(), given) as batch:
        ids = batch["input_ids"][0]
        last = hidden_elements(torch.randn(4, 5).index_select(-1, ids))
        first = hidden_elements(torch.randn(5, 4).index_select(0, ids))
    assert last.expand(4, 3).tolist() == [[False, False, True]] * 4
    assert first.expand(3, 4).T.tolist() == [[False, False, True]] * 4


def test_masks_of_freed_values_are_dropped():
    _, mask = tokens(size=64)
    masks = []
    with following(None, {"x": torch.ones(4, 64, 1024), "attention_mask": mask}) as shown:
        x = shown["x"]
        for _ in range(100):  # each has a mask of its own of 256 kB
            x = x.flip(-1)
            masks.append(weakref.ref(hidden_elements(x)))
        assert torch.equal(hidden_elements(x), (mask == 0)[..., None].expand(x.shape))
        assert sum(each() is not None for each in masks) <= 20
