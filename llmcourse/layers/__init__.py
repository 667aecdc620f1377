"""The parts of the models as `nn.Module`s, one file a part."""
