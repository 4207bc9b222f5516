#pragma once
#include <zlib.h>
// `inflateInit2` and `deflateInit2` are macros. 16 above the largest window: gzip (RFC 1952), and
// nothing else.
static inline int heartline_inflate_init(z_stream *stream) { return inflateInit2(stream, 16 + MAX_WBITS); }
static inline int heartline_deflate_init(z_stream *stream) {
    return deflateInit2(stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8,
                        Z_DEFAULT_STRATEGY);
}
