"""What options of pictures may be. Nothing is imported: command lines show it before all else."""

# Of a block: before the attention, before the feed-forward network.
NORMS = ('norm1', 'norm2')
# What a norm is compared with: the three of DTN (ICLR 2022), Figures 1 and 2.
COMPARED = ('LN', 'IN', 'DTN')
# Where position is added: before the attention of a layer, in the stream.
SOURCES = ('attention', 'stream')
# Fits of a Gabor position: with Gabor channels, with edges.
VARIANTS = {'G+E': (True, True), 'G': (True, False), 'E': (False, True)}
