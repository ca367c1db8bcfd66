from p2pmsg.native import ScanLines
from p2pmsg.native.twin import Frame as Frame
from p2pmsg.native.twin import appending as appending
from p2pmsg.native.twin import decode_body as decode_body
from p2pmsg.native.twin import decode_one as decode_one
from p2pmsg.native.twin import find_block as find_block
from p2pmsg.native.twin import pack_lone as pack_lone
from p2pmsg.native.twin import read_frame as read_frame
from p2pmsg.native.twin import seal_frame as seal_frame

SOURCE: int
scan_lines: ScanLines
