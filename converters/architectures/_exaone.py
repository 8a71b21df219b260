"""What EXAONE 4 and K-EXAONE share: blocks with a window turn queries and keys, those without do not."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.block_patterns import rotated_where_windowed
from ggferry.formats.gguf.values import ValueType

WINDOWS = (
    *common.WINDOW_LIST,
    HParam("rope_layers", None, ValueType.BOOL, derive=rotated_where_windowed, length="n_layer", required=False),
)
