"""Small models for `check_isolation`: five that isolate documents, and twelve that leak.

Each of the twelve is rebuilt from a bug of a known project, which its docstring names.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 32
WIDTH = 16
LENGTH = 24


def make_batch(seed, rows=2):
    """Returns packed documents of random lengths, one of them a single token, with padding at the end of each row.

    The last token of each document has no loss. `cu_seqlens` has the format of tokenloom's datasets.
    """
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=rng)
    bounds = torch.full((rows, LENGTH + 1), LENGTH, dtype=torch.int32)
    positions = torch.zeros(rows, LENGTH, dtype=torch.int64)
    loss_mask = torch.ones(rows, LENGTH)
    for row in range(rows):
        lengths = torch.randint(4, 8, (4,), generator=rng).tolist()
        lengths[int(torch.randint(3, (1,), generator=rng))] = 1
        ends = torch.tensor([0, *lengths]).cumsum(0)
        bounds[row, : len(ends)] = ends
        for begin, end in pairwise(ends):
            positions[row, begin:end] = torch.arange(end - begin)
        last = int(ends[-1])
        tokens[row, last:], loss_mask[row, last:] = 0, 0
        positions[row, last:] = torch.arange(LENGTH - last)
        loss_mask[row, ends[1:] - 1] = 0
    labels = torch.where(loss_mask > 0, tokens.roll(-1, dims=1), -100)
    return {
        "tokens": tokens,
        "labels": labels,
        "loss_mask": loss_mask,
        "position_ids": positions,
        "cu_seqlens": bounds,
        "attention_mask": torch.ones(rows, LENGTH, dtype=torch.int64),
    }


def make_pairs(seed):
    """Returns packed documents with a source and a target, for encoder-decoder models, and their document indices."""
    rng = torch.Generator().manual_seed(seed)
    targets = torch.tensor([[0] * 5 + [1] * 3 + [2] * 6])
    sources = torch.tensor([[0] * 4 + [1] * 6 + [2] * 1 + [-1] * 5])
    batch = {
        "tokens": torch.randint(1, VOCABULARY, targets.shape, generator=rng),
        "encoder_tokens": torch.randint(1, VOCABULARY, sources.shape, generator=rng),
        "segments": targets,
        "encoder_segments": sources,
    }
    return batch, {"tokens": targets, "encoder_tokens": sources, "encoder_segments": sources}


def documents_of(cu_seqlens, length):
    """Returns int64[rows, length], the document of each position."""
    positions = torch.arange(length).expand(len(cu_seqlens), length).contiguous()
    return torch.searchsorted(cu_seqlens.long().contiguous(), positions, right=True)


def document_mask(documents, *, window=LENGTH):
    """Returns bool[rows, 1, length, length], True where a position may attend to another one."""
    causal = torch.ones(documents.shape[1], documents.shape[1], dtype=torch.bool).tril()
    return (causal & ~causal.tril(-window) & (documents[:, :, None] == documents[:, None, :]))[:, None]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, mask=None):
        query, key, value = self.project(hidden).unflatten(2, (2, -1)).transpose(1, 2).chunk(3, dim=3)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.out(found.transpose(1, 2).flatten(2))


class ShortConv(nn.Module):
    """A causal convolution over three tokens; given documents, it restarts in each."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, WIDTH) / 2)

    def forward(self, hidden, documents=None):
        found = torch.zeros_like(hidden)
        for back in range(3):
            shifted = functional.pad(hidden, (0, 0, back, 0))[:, : hidden.shape[1]]
            if documents is not None:
                before = functional.pad(documents, (back, 0), value=-1)[:, : documents.shape[1]]
                shifted = torch.where((before == documents)[..., None], shifted, 0)
            found = found + self.weight[back] * shifted
        return found


class Scan(nn.Module):
    """A gated state that runs along the row; given documents, it is reset at each start."""

    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, documents=None):
        gates, values = self.gate(hidden).sigmoid(), self.value(hidden)
        state, found = torch.zeros_like(values[:, 0]), []
        for step in range(hidden.shape[1]):
            if documents is not None and step:
                state = state * (documents[:, step] == documents[:, step - 1])[:, None]
            state = gates[:, step] * state + values[:, step]
            found.append(state)
        return torch.stack(found, dim=1)


class Mamba(nn.Module):
    conv_kind = ShortConv

    def __init__(self):
        super().__init__()
        self.conv, self.scan = self.conv_kind(), Scan()

    def forward(self, hidden, documents=None):
        return self.scan(functional.silu(self.conv(hidden, documents)), documents)


class Block(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(WIDTH), mixer
        inner = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), *inner)

    def forward(self, hidden, *given):
        hidden = hidden + self.mixer(self.norm(hidden), *given)
        return hidden + self.mlp(hidden)


class Model(nn.Module):
    """Maps tokens to logits; subclasses call the blocks."""

    mixers = (Attention, Attention)

    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(mixer()) for mixer in self.mixers)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def run(self, hidden, *given):
        for block in self.blocks:
            hidden = block(hidden, *given)
        return self.head(hidden)

    def masked(self, tokens, position_ids, cu_seqlens, **settings):
        mask = document_mask(documents_of(cu_seqlens, tokens.shape[1]), **settings)
        return self.run(self.embed(tokens) + self.positions(position_ids), mask)


class BlockMask(Model):
    """Dense causal attention with a block mask."""

    def forward(self, tokens, position_ids, cu_seqlens):
        return self.masked(tokens, position_ids, cu_seqlens)


class VarlenAttention(Attention):
    def forward(self, hidden, bounds):
        flat = hidden.flatten(0, 1)
        parts = flat.split(bounds.diff().tolist())
        return torch.cat([super(VarlenAttention, self).forward(part[None])[0] for part in parts]).view_as(hidden)


class Varlen(Model):
    """Attention within each sequence, like kernels that take `cu_seqlens` of all rows concatenated."""

    mixers = (VarlenAttention, VarlenAttention)

    def forward(self, tokens, position_ids, cu_seqlens):
        rows, length = tokens.shape
        bounds = (cu_seqlens.long() + length * torch.arange(rows)[:, None]).flatten().unique()
        return self.run(self.embed(tokens) + self.positions(position_ids), bounds)


class SlidingWindow(Model):
    """Attention to the last three tokens of the document."""

    def forward(self, tokens, position_ids, cu_seqlens):
        return self.masked(tokens, position_ids, cu_seqlens, window=3)


class MambaWithResets(Model):
    """Convolutions and scans that restart in each document."""

    mixers = (Mamba, Mamba)

    def forward(self, tokens, cu_seqlens):
        return self.run(self.embed(tokens), documents_of(cu_seqlens, tokens.shape[1]))


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key_value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, hidden, source, mask):
        key, value = self.key_value(source).chunk(2, dim=2)
        return functional.scaled_dot_product_attention(self.query(hidden), key, value, attn_mask=mask)


class EncoderDecoder(nn.Module):
    """An encoder that sees all of its document, and a decoder that attends to the source of its document."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder = Block(Attention()), Block(Attention())
        self.cross = CrossAttention()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def cross_mask(self, segments, encoder_segments):
        return segments[:, :, None] == encoder_segments[:, None, :]

    def forward(self, tokens, encoder_tokens, segments, encoder_segments):
        same = (encoder_segments[:, :, None] == encoder_segments[:, None, :])[:, None]
        source = self.encoder(self.embed(encoder_tokens), same)
        hidden = self.decoder(self.embed(tokens), document_mask(segments))
        return self.head(hidden + self.cross(hidden, source, self.cross_mask(segments, encoder_segments)))


SOUND = (BlockMask, Varlen, SlidingWindow, MambaWithResets, EncoderDecoder)

# --- documents are not apart ------------------------------------------------------------------------------------------


class NoDocumentMask(Model):
    """Packing with a mask that is only causal: unslothai/unsloth#1207."""

    def forward(self, tokens, position_ids):
        return self.run(self.embed(tokens) + self.positions(position_ids), None)


class PositionsGoOn(Model):
    """Positions are counted over the whole row: huggingface/nanoVLM#201."""

    def forward(self, tokens, cu_seqlens):
        return self.masked(tokens, torch.arange(tokens.shape[1]).expand_as(tokens), cu_seqlens)


class ConvGoesOn(Attention):
    def __init__(self):
        super().__init__()
        self.conv = ShortConv()

    def forward(self, hidden, mask):
        return super().forward(self.conv(hidden), mask)


class ConvOverEnds(Model):
    """Attention is masked, but a short convolution crosses ends of documents: huggingface/transformers#46588."""

    mixers = (Attention, ConvGoesOn)

    def forward(self, tokens, cu_seqlens):
        return self.run(self.embed(tokens), document_mask(documents_of(cu_seqlens, tokens.shape[1])))


class StateGoesOn(Mamba):
    def forward(self, hidden, documents):
        return self.scan(self.conv(hidden, documents))


class StateOverEnds(MambaWithResets):
    """Boundaries reach the convolution, but not the recurrence after it: THUDM/slime#1686."""

    mixers = (StateGoesOn, StateGoesOn)


class OneLayerInFour(Model):
    """Attention layers get a block mask, recurrent layers get nothing: pytorch/torchtitan#3984."""

    mixers = (Attention, Mamba, Mamba, Mamba)

    def forward(self, tokens, cu_seqlens):
        mask = document_mask(documents_of(cu_seqlens, tokens.shape[1]))
        first, *others = self.blocks
        return self.head(nn.Sequential(*others)(first(self.embed(tokens), mask)))


class BoundariesOverwritten(Model):
    """A mask of ones replaces the given boundaries: fla-org/flash-linear-attention#838."""

    mixers = (Mamba, Mamba)

    def forward(self, tokens, cu_seqlens, attention_mask=None):
        documents = documents_of(cu_seqlens, tokens.shape[1]) if attention_mask is None else attention_mask
        return self.run(self.embed(tokens), documents)


class OneTokenMerged(Model):
    """Documents start where positions decrease, which fails after one-token documents: modelscope/ms-swift#9904."""

    def forward(self, tokens, position_ids):
        begins = functional.pad((position_ids.diff(dim=1) < 0).long(), (1, 0))
        return self.run(self.embed(tokens), document_mask(begins.cumsum(1)))


class ShardedConv(ShortConv):
    def forward(self, hidden, documents):
        shards = (torch.arange(hidden.shape[1]) * 2 // hidden.shape[1]).expand_as(documents)
        return super().forward(hidden, 2 * documents + shards)


class ShardedMamba(Mamba):
    conv_kind = ShardedConv


class ResetAtShards(MambaWithResets):
    """With context parallelism a convolution restarts in each rank's part: PrimeIntellect-ai/prime-rl#3003."""

    mixers = (ShardedMamba,)


class Future(nn.Module):
    """Predicts one token further, from the embedding of the next one."""

    def __init__(self):
        super().__init__()
        self.join = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden, tokens, embed):
        return self.join(torch.cat([hidden, embed(tokens.roll(-1, dims=1))], dim=2))


class FutureOverEnds(BlockMask):
    """Tokens are shifted across ends for multi-token prediction: NVIDIA/Megatron-LM#6205."""

    def __init__(self):
        super().__init__()
        self.future = Future()

    def forward(self, tokens, cu_seqlens):
        mask = document_mask(documents_of(cu_seqlens, tokens.shape[1]))
        hidden = self.blocks[1](self.blocks[0](self.embed(tokens), mask), mask)
        return {"logits": self.head(hidden), "future": self.head(self.future(hidden, tokens, self.embed))}


class SegmentsUnused(EncoderDecoder):
    """Cross-attention ignores segment ids: tensorflow/mesh#173."""

    def cross_mask(self, segments, encoder_segments):
        return (encoder_segments >= 0)[:, None, :].expand(-1, segments.shape[1], -1)


class Experts(nn.Module):
    """Each expert processes the half of all tokens with the highest scores for it."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, hidden):
        flat = hidden.flatten(0, 1)
        wanted = self.router(flat).softmax(dim=1)
        found = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            taken = wanted[:, index].topk(len(flat) // 2).indices
            found = found.index_add(0, taken, expert(flat[taken]) * wanted[taken, index, None])
        return found.view_as(hidden)


class CapacityShared(BlockMask):
    """Padding takes places of experts from tokens: NVIDIA/Megatron-LM#5542."""

    def __init__(self):
        super().__init__()
        self.blocks[1].mlp = Experts()


class LabelsOverEnds(BlockMask):
    """The loss shifts labels over the whole pack: meta-pytorch/torchtune#2613."""

    def forward(self, tokens, position_ids, cu_seqlens):
        logits = super().forward(tokens, position_ids, cu_seqlens)
        labels = tokens.roll(-1, dims=1)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(tokens)


LEAKING = {
    NoDocumentMask: ("gradient", "blocks.0.mixer"),
    PositionsGoOn: ("alone", "positions"),
    ConvOverEnds: ("gradient", "blocks.1.mixer.conv"),
    StateOverEnds: ("gradient", "blocks.0.mixer.scan"),
    OneLayerInFour: ("gradient", "blocks.1.mixer.conv"),
    BoundariesOverwritten: ("gradient", "blocks.0.mixer.conv"),
    OneTokenMerged: ("gradient", "blocks.0.mixer"),
    ResetAtShards: ("alone", "blocks.0.mixer.conv"),
    FutureOverEnds: ("change", "future"),
    SegmentsUnused: ("gradient", "cross"),
    CapacityShared: ("alone", "blocks.1.mlp"),
    LabelsOverEnds: ("change", ""),
}
"""By model: a check that finds its leak, and the module where it begins; "" is the model itself."""


def make(kind, seed):
    """Returns a model, a batch for it, and `documents=` for the batch."""
    torch.manual_seed(seed)
    model = kind().eval()
    if issubclass(kind, EncoderDecoder):
        return model, *make_pairs(seed)
    return model, make_batch(seed), None
