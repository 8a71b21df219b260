"""KerasHub: names and layouts of its backbones, and configurations made of its config.json."""
