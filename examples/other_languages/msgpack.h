/* As much of msgpack as a reader of p2pmsg needs: https://github.com/msgpack/msgpack/blob/master/spec.md */

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A cursor that never leaves its bytes; `bad` is set where it would. */
typedef struct { const uint8_t *at, *end; int bad; } Pack;
typedef struct { char type; uint64_t number; double real; const uint8_t *bytes; } Item;
/* types: i(nteger) n(egative) f(loat) s(tring) b(ytes) a(rray) m(ap) z(nil) t(rue or false) x (extension) */

static uint64_t big(Pack *p, int size) {
    uint64_t value = 0;
    if (p->end - p->at < size) { p->bad = 1; return 0; }
    while (size--) value = value << 8 | *p->at++;
    return value;
}

static Item lengthy(Pack *p, char type, uint64_t length) { /* of strings and bytes, the bytes; of arrays, the number */
    Item item = {type, length, 0, p->at};
    if ((uint64_t)(p->end - p->at) < length) p->bad = 1; /* an entry takes a byte at least */
    else if (type == 's' || type == 'b' || type == 'x') p->at += length;
    return item;
}

static Item item(Pack *p) {
    static const char blobs[] = {'b', 'b', 'b', 'x', 'x', 'x'};
    int lead = (int)big(p, 1);
    Item none = {'z', 0, 0, NULL};
    if (p->bad || lead == 0xc0) return none;
    if (lead < 0x80) return (Item){'i', lead, lead, NULL};
    if (lead >= 0xe0) return (Item){'n', (uint64_t)(int64_t)(int8_t)lead, 0, NULL};
    if (lead < 0x90) return lengthy(p, 'm', lead & 15);
    if (lead < 0xa0) return lengthy(p, 'a', lead & 15);
    if (lead < 0xc0) return lengthy(p, 's', lead & 31);
    if (lead == 0xc2 || lead == 0xc3) return (Item){'t', lead & 1, 0, NULL};
    if (lead >= 0xc4 && lead <= 0xc9) {
        uint64_t length = big(p, 1 << (lead - 0xc4) % 3);
        return lengthy(p, blobs[lead - 0xc4], length + (lead > 0xc6)); /* an extension has its type in front */
    }
    if (lead == 0xca) { uint32_t bits = (uint32_t)big(p, 4); float f; memcpy(&f, &bits, 4); return (Item){'f', 0, f, NULL}; }
    if (lead == 0xcb) { uint64_t bits = big(p, 8); double f; memcpy(&f, &bits, 8); return (Item){'f', 0, f, NULL}; }
    if (lead >= 0xcc && lead <= 0xcf) return (Item){'i', big(p, 1 << (lead - 0xcc)), 0, NULL};
    if (lead >= 0xd0 && lead <= 0xd3) {
        int size = 1 << (lead - 0xd0);
        int64_t value = (int64_t)(big(p, size) << (64 - 8 * size)) >> (64 - 8 * size);
        return (Item){value < 0 ? 'n' : 'i', (uint64_t)value, 0, NULL};
    }
    if (lead >= 0xd4 && lead <= 0xd8) return lengthy(p, 'x', (1 << (lead - 0xd4)) + 1);
    if (lead >= 0xd9 && lead <= 0xdb) { uint64_t length = big(p, 1 << (lead - 0xd9)); return lengthy(p, 's', length); }
    if (lead >= 0xdc && lead <= 0xdf) {
        uint64_t length = big(p, lead & 1 ? 4 : 2);
        return lengthy(p, lead < 0xde ? 'a' : 'm', length);
    }
    p->bad = 1; /* 0xc1 */
    return none;
}

static void print(Pack *p, FILE *out, int depth) { /* the next value as JSON; `out` NULL: skip it */
    Item one = item(p);
    if (depth > 32) p->bad = 1;
    if (p->bad) return;
    if (one.type == 'a' || one.type == 'm') {
        if (out) fputc(one.type == 'a' ? '[' : '{', out);
        for (uint64_t n = 0; n < one.number && !p->bad; n++) {
            if (out && n) fputc(',', out);
            print(p, out, depth + 1);
            if (one.type == 'm') { if (out) fputc(':', out); print(p, out, depth + 1); }
        }
        if (out) fputc(one.type == 'a' ? ']' : '}', out);
    } else if (out && strchr("sbx", one.type)) {
        fputc('"', out);
        for (uint64_t n = 0; n < one.number; n++) {
            uint8_t c = one.bytes[n];
            if (c < 32 || (c > 126 && one.type != 's')) fprintf(out, "\\u%04x", c);
            else { if (c == '"' || c == '\\') fputc('\\', out); fputc(c, out); }
        }
        fputc('"', out);
    } else if (out) {
        if (one.type == 'i') fprintf(out, "%" PRIu64, one.number);
        else if (one.type == 'n') fprintf(out, "%" PRId64, (int64_t)one.number);
        else if (one.type == 'f') fprintf(out, "%.17g", one.real);
        else fputs(one.type == 'z' ? "null" : one.number ? "true" : "false", out);
    }
}

static size_t pack_number(uint8_t *to, uint64_t value) { /* always in 9 bytes: that is msgpack, too */
    to[0] = 0xcf;
    for (int n = 0; n < 8; n++) to[1 + n] = (uint8_t)(value >> (56 - 8 * n));
    return 9;
}

static size_t pack_text(uint8_t *to, const char *text) { /* up to 255 bytes */
    size_t length = strlen(text);
    to[0] = 0xd9, to[1] = (uint8_t)length;
    memcpy(to + 2, text, length);
    return 2 + length;
}
