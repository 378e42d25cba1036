"""The text of a new run file: every field that a run has, explained where it is set.

Lines with ``##`` explain. Lines with ``#`` are fields that are switched off; taking the ``# `` away gives valid YAML.
"""

import json

_TEMPLATE = """\
## What all peers of one run agree on. It travels with the invite: volunteers need no copy of this file.
## Lines that begin with "##" explain. A line that begins with a single "#" is a field that is not set: it shows the
## default, or another choice; take the "# " away to use it. Fields that are set name their default behind them.
## What belongs to one machine (device, name, data directory, its own microbatch) is a flag of 'collab-peer join'.

## Name of the run in invites, records and checkpoints: 3 to 40 of a-z, 0-9 and "-", not "-" first.
run_id: @RUN_ID@  # required

## What volunteers read before they take part, one line each. All peers agree on it; nothing else follows from it.
about:
  ## What the model is for.
  purpose: ""  # default: ""
  ## Where questions go: an address, a page.
  contact: ""  # default: ""
  ## Licence of what is trained on.
  data_license: ""  # default: ""
  ## Licence of the model that comes out of it.
  model_license: ""  # default: ""

## Seed of the model's first weights and of who reads which data; 0 to 4294967295.
seed: 0  # default: 0

## Samples of one forward and backward on each machine; a volunteer with little memory may say otherwise.
microbatch_size: 8  # default: 8

## Who may take part. open: whoever has the invite that the backbone prints. invite_only: people whom you invite by name
## with 'collab-peer invite'; every message of anybody else is refused.
access: open  # default: open

## Trainers that have seen no backbone, and nothing of you, for so many hours keep their state, say so and stop.
orphan_after_h: 24.0  # default: 24.0

## What a trainer does while no other one is here: train alone, or wait for company.
when_alone: train  # default: train

## Everybody stops after this many epochs; an epoch is one global optimiser step. null: train until somebody stops it.
until_epoch: 300  # default: null

## The run ends when a checkpoint's loss on held-out data is this or less, > 0; the backbone of this directory measures
## that, and ends it. null: however low.
# until_loss: null
## The same for the share of held-out samples that are named right, above 0, at most 1; for image_classification.
# until_accuracy: null

## Repository of the Hugging Face Hub, as owner/name, where the backbone of this directory publishes checkpoints,
## one commit an hour at most unless it is told otherwise; it may be changed while the run goes on. null: nowhere. The
## token is never in here: 'hf auth login'.
# hub_repo: null

## -- what is learnt ---------------------------------------------------------------------------------------------

task:
  ## causal_lm: predict the next token of a text. Another task stands at the end of this section.
  name: causal_lm

  ## A configuration of the transformers library: model_type, then that model's own fields.
  ## This one has about 1.3 million parameters: every laptop trains it. vocab_size is set from the tokenizer.
  model:  # required
    model_type: gpt2
    n_layer: 4
    n_head: 4
    n_embd: 128
    resid_pdrop: 0.0
    embd_pdrop: 0.0
    attn_pdrop: 0.0

  ## Tokens of one sample, at least 8.
  sequence_length: 128  # default: 128

  ## Tokens in the vocabulary, at least 257: a byte-level BPE that the backbone trains on the data below.
  vocab_size: 4096  # default: 4096

  ## Path of a tokenizer.json on this machine, to use instead of training one; it travels with the run.
  # tokenizer: null

  ## Held-out samples behind each reported eval loss, at least 1.
  eval_samples: 64  # default: 64

  ## Three sources of text; "data" may be there once. builtin: Python's standard library's own source.
  data:
    source: builtin
    ## Text to take from the source at most, in 10^6 bytes.
    max_megabytes: 8.0  # default: 8.0
    ## shared: peers with the same data divide it, so that together they train each sample once a pass. local: every
    ## peer has data of its own, draws from it by itself, and tells nobody anything about it.
    placement: shared  # default: shared

  ## files: your own files, which every volunteer needs under the same path.
  # data:
  #   source: files
  ## A file, a directory or a pattern: .txt .md .py are text; .jsonl and .parquet hold it in a field.
  #   path: texts/*.txt  # required
  ## Field of .jsonl and .parquet rows that holds the text.
  #   text_field: text
  ## Text to take at most, in 10^6 bytes.
  #   max_megabytes: 200.0
  ## As above; local where every site has files of its own under this path.
  #   placement: shared

  ## hub: a dataset of the Hugging Face Hub, streamed shard by shard, each by one peer at a time.
  # data:
  #   source: hub
  ## Name on the Hub, as owner/name.
  #   dataset: owner/name  # required
  ## Configuration of a dataset that has several; null: the only one.
  #   subset: null
  ## Split to train on; a part of it is held out for the eval loss.
  #   split: train
  ## Column that holds the text.
  #   text_field: text
  ## Commit or tag of the dataset, so that it does not change under the run; null: the newest.
  #   revision: null
  ## Text of one shard that is trained at most, in 10^6 bytes; with placement: local, text that each peer keeps.
  #   max_megabytes: 200.0
  ## As above; local: each peer streams a part in an order of its own, and draws from that.
  #   placement: shared

## image_classification: a small perceptron on scikit-learn's 8 x 8 digits, to try things out in seconds.
## "task" may be there once: take the one above out.
# task:
#   name: image_classification
## Units of each hidden layer.
#   hidden_sizes: [32]
## Held-out images, 1 to 1000 of 1797.
#   eval_samples: 297

## module: a task of your own, which each volunteer has installed and allowed ('--allow my_task'). Code never travels.
# task:
#   name: module
## As Python would import it.
#   module: my_task  # required
## Of its one file: sha256sum my_task.py. Who has another file is told so.
#   sha256: "0000000000000000000000000000000000000000000000000000000000000000"  # required
## A class in it that is made as collab.tasks.base.Task says.
#   class_name: MyTask  # required
## What it is made with, by name.
#   options: {}
## As for text: shared, or local where every site has data of its own that must stay there.
#   placement: shared

## -- the global step --------------------------------------------------------------------------------------------

optimizer:
  ## sgd, adamw, lamb (for very large batches), adamw8bit (states in 8 bits; every peer needs the package bitsandbytes).
  name: adamw  # default: adamw
  ## Peak learning rate, > 0; the schedule below scales it.
  learning_rate: 0.002  # default: 0.001
  ## Decay of weight matrices, >= 0; biases and norms never decay.
  weight_decay: 0.1  # default: 0.0
  ## Memory of the mean and of the squared gradient, each from 0 to below 1; of adamw, lamb and adamw8bit.
  betas: [0.9, 0.95]  # default: [0.9, 0.999]
  ## Added to the divisor, > 0; of adamw, lamb and adamw8bit.
  # epsilon: 1.0e-8
  ## Heavy-ball momentum, from 0 to below 1; of sgd only.
  # momentum: 0.0

schedule:
  ## constant, linear (straight down) or cosine, after the warm-up.
  name: linear  # default: constant
  ## Epochs of linear rise from 1/warmup_epochs of the learning rate to all of it; 0: none.
  warmup_epochs: 20  # default: 0
  ## Epoch at which linear and cosine have come down; they need it, and it must be larger than warmup_epochs.
  total_epochs: 300  # default: null
  ## Fraction of the learning rate that is left then, 0 to 1.
  final_factor: 0.1  # default: 0.0

strategy:
  ## dedloc: gradients of all peers add up to one large batch, then everybody takes the same step.
  name: dedloc
  ## Samples that the swarm gathers for one step, at least 1.
  target_batch_size: 128  # default: 256
  ## Clip the averaged gradient to this norm, > 0; null: do not clip.
  max_gradient_norm: 1.0  # default: 1.0
  ## 0: everybody waits for the round of a step. 1: it goes on beside the next batch, whose gradients are a step stale.
  delay: 0  # default: 0

## dts: every peer takes steps of its own, and what they come to is averaged beside them; for long ways and thin links.
# strategy:
#   name: dts
## Samples that the swarm computes, in many small steps, until it averages what they have come to, at least 1.
#   target_batch_size: 256
## Steps of one peer that are averaged at a time, at least 1, as a mean over the peers; null: as target_batch_size says.
#   period: null
## Steps that a peer takes while that is under way, at most, 0 or more; null: as many as it takes, nobody ever waits.
#   delay: null
## Windows of steps in one round, 1 to 256: many for short steps over long ways, with averaging.reduction: mean.
#   windows: 1
## Clip the gradient of each step to this norm, > 0; null: do not clip.
#   max_gradient_norm: 1.0

## diloco: every peer takes many steps of its own, then all take one outer step on how far they have gone: for thin
## links. An epoch is an outer step.
# strategy:
#   name: diloco
## Samples of the inner steps of all peers together until the next outer step, at least 1.
#   target_batch_size: 4096
## Of the outer step, > 0.
#   outer_learning_rate: 0.7
## Of Nesterov's kind, from 0 (off) to below 1.
#   outer_momentum: 0.9
## 0: everybody waits for the round. 1: it goes on beside the next inner steps, and its outer step comes one late.
#   delay: 0
## Clip the gradient of each inner step to this norm, > 0; null: do not clip.
#   max_gradient_norm: 1.0

## vc_asgd: every peer trains a copy of the parameters on a unit of the data and brings it to a server, which mixes it
## in at once; nobody waits for anybody. For preemptible machines. An epoch is one unit.
# strategy:
#   name: vc_asgd
## Units that the data is cut into; with until_epoch 2000 and 50 units everything is trained on 40 times.
#   shards: 50
## What the server keeps of its own when it mixes: 0 or more and below 1, or pass: e/(e+1) in the e-th pass.
#   alpha: pass
## Units that others bring in while a peer works on one, at most, 0 or more; else its work does not count. null: any.
#   max_staleness: null
## Seconds that a peer has for a unit while nobody knows yet how long one takes, > 0; later three times the slowest.
#   first_lease_s: 300.0
## strong: no unit is ever lost. eventual: several servers mix side by side, and a unit is overwritten now and then.
#   consistency: strong
## Units that a peer has at once, 1 to 16: with 2 or more it computes while it sends.
#   units_at_once: 1
## Clip the gradient of each step to this norm, > 0; null: do not clip.
#   max_gradient_norm: 1.0

## solo: no communication, every peer trains alone; the baseline to compare with.
# strategy:
#   name: solo
## Samples that one peer gathers for one step, at least 1.
#   target_batch_size: 256
## Clip the gradient to this norm, > 0; null: do not clip.
#   max_gradient_norm: 1.0

## module: a strategy of your own, as above ('--allow my_rule'); see collab.strategies.base.Strategy.
# strategy:
#   name: module
## As Python would import it.
#   module: my_rule  # required
## Of its one file.
#   sha256: "0000000000000000000000000000000000000000000000000000000000000000"  # required
## A class in it; it is made with target=... and the options.
#   class_name: MyRule  # required
## What it is made with, by name.
#   options: {}
## Samples that the swarm gathers for one step, at least 1.
#   target_batch_size: 256

## -- network and disk -------------------------------------------------------------------------------------------

averaging:
  ## How numbers travel. auto: every peer in the encoding that its own link needs, from float32 down to 4 bits; what
  ## rounding loses is sent later. half: float16 for all. exact: float32 for all, four times the bytes of auto and more.
  ## int8, int4: so many bits for everything, also for the means; for diloco, whose steps bear it.
  ## sparse: the largest 64 of 4096 numbers, the others when they have grown; for windows of many steps (dts),
  ## not for single gradients (dedloc). sparse_both: signs of the largest ninth, the means as well; for diloco runs of
  ## many rounds, with an outer_learning_rate of 2.8 and an outer_momentum of 0.1 for language models.
  compression: auto  # default: auto
  ## How contributions become one step. clipped_mean: nobody gains by sending longer vectors. mean, for people who know
  ## each other: large-batch training exactly, but one liar can spoil it. median, trimmed_mean, centered_clip: withstand
  ## more, cost more.
  reduction: clipped_mean  # default: clipped_mean
  ## Largest share of a round that one peer's claimed samples can get, above 0, at most 1 (no cap).
  max_share: 1.0  # default: 1.0
  ## Peers send a running mean of their gradients that keeps so much of itself in each epoch, from 0 (off) to below 1.
  ## With centered_clip 0.9 or more; take then sgd without momentum, or adamw with a first beta of 0.
  worker_momentum: 0.0  # default: 0.0

checkpoints:
  ## The backbone writes one after every so many epochs, at least 1.
  every_epochs: 10  # default: 10
  ## Newest checkpoints that stay on its disk, at least 1.
  keep: 3  # default: 3
"""


def template(run_id: str) -> str:
    """Text of the ``run.yaml`` that ``collab-peer init`` writes: a small language model on built-in text.

    Args:
        run_id: goes into the file as it is, quoted; whether a run can have that name is checked when it is read.
    """
    return _TEMPLATE.replace("@RUN_ID@", json.dumps(run_id))
