/* A p2pmsg subscriber in C, written from p2pmsg/PROTOCOL.md: prints each message once and in order.
 *
 *   cc -O2 -o reader reader.c -lzmq
 *   ./reader tcp://127.0.0.1:5556 TOPIC [COUNT]
 *
 * One line a message: its sequence and its value in JSON. It begins with the earliest message that the publisher
 * keeps, asks again for what is missing (NACK), prints `lost START STOP REASON` where that cannot be had, and ends
 * after COUNT messages. Standard error says what it does. It needs nothing but libzmq 4. */

#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "msgpack.h"

enum { DATA = 1, HEARTBEAT = 2, WELCOME = 16, PROBE = 17, ECHO = 18, JOINED = 19, NACK = 20, REFUSED = 21, LEAVE = 24 };
enum { CLOSING = 1, HEADER = 38, HELD = 4096, RANGES = 1024 };

static void *data, *recovery;
static const char *endpoint, *topic;
static char asked[2200];               /* the recovery endpoint that is connected to */
static uint64_t session, probe, me;
static int joined_session, begun;      /* whether a WELCOME has come, and the ECHO */
static int closing, sent_complete;     /* whether the publisher closes; whether JOINED said that all has come */
static uint64_t next, head, left = UINT64_MAX;
static struct { uint8_t *value; size_t length; } held[HELD]; /* of [next, next + HELD): at sequence % HELD */
static int64_t probe_at, joined_at, nack_at, probe_wait = 10, nack_wait = 20;

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void send_frame(int kind, const uint8_t *body, size_t length) {
    static uint8_t bytes[1 + HEADER + 64 + RANGES * 19 + 512];
    memset(bytes, 0, 1 + HEADER);
    memcpy(bytes + 1, "p2\x01", 3); /* the topic is empty: its zero byte comes first */
    bytes[4] = (uint8_t)kind;
    for (int n = 0; n < 8; n++) bytes[7 + n] = (uint8_t)(session >> (56 - 8 * n));
    for (int n = 0; n < 4; n++) bytes[27 + n] = (uint8_t)(length >> (24 - 8 * n));
    memcpy(bytes + 1 + HEADER, body, length);
    zmq_send(recovery, bytes, 1 + HEADER + length, ZMQ_DONTWAIT); /* what is lost is sent again */
}

static void send_probe(void) {
    uint8_t body[600] = {0x93};
    size_t size = 1 + pack_number(body + 1, probe);
    body[size++] = 0x91;
    size += pack_text(body + size, topic);
    size += pack_text(body + size, "earliest");
    send_frame(PROBE, body, size);
}

static void send_joined(int kind, int complete) {
    uint8_t body[64] = {0x93};
    size_t size = 1 + pack_number(body + 1, me);
    size += pack_text(body + size, "reader.c");
    body[size++] = complete ? 0xc3 : 0xc2;
    send_frame(kind, body, size);
}

static void send_nack(void) { /* of what is neither printed nor held */
    static uint8_t body[64 + 300 + RANGES * 19];
    uint64_t stop = head < next + HELD ? head : next + HELD;
    int ranges = 0;
    size_t size = 1, count_at;
    body[0] = 0x92;
    size += pack_text(body + size, topic);
    count_at = size + 1, body[size] = 0xdc, size += 3;
    for (uint64_t at = next; at < stop && ranges < RANGES; ranges++) {
        uint64_t start = at;
        while (at < stop && !held[at % HELD].value) at++;
        if (at == start) { at++, ranges--; continue; }
        if (!ranges) fprintf(stderr, "asks from %" PRIu64 " to %" PRIu64 ", and what is missing after it\n", start, at);
        body[size++] = 0x92;
        size += pack_number(body + size, start);
        size += pack_number(body + size, at);
    }
    body[count_at] = (uint8_t)(ranges >> 8), body[count_at + 1] = (uint8_t)ranges;
    send_frame(NACK, body, size);
}

static void forget(uint64_t from, uint64_t to) {
    for (uint64_t n = from; n < to && n < from + HELD; n++) { free(held[n % HELD].value); held[n % HELD].value = NULL; }
}

static void show(void) {
    while (begun && left && held[next % HELD].value) {
        Pack value = {held[next % HELD].value, held[next % HELD].value + held[next % HELD].length, 0};
        printf("%" PRIu64 " ", next);
        print(&value, stdout, 0);
        putchar('\n');
        forget(next, next + 1);
        next++, left--, nack_wait = 20, nack_at = now_ms() + 20;
    }
    fflush(stdout);
}

static void take_welcome(Pack body, uint64_t found) { /* name, recovery endpoint, … */
    Item fields = item(&body), name = item(&body), where = item(&body);
    char place[2200];
    const char *any = "tcp://*:", *zeros = "tcp://0.0.0.0:", *colon = strrchr(endpoint, ':');
    if (body.bad || fields.type != 'a' || name.type != 's' || where.type != 's' || where.number > 1024) return;
    size_t port = where.number;
    while (port && where.bytes[port - 1] != ':') port--;
    snprintf(place, sizeof place, "%.*s", (int)where.number, (const char *)where.bytes);
    if (!strncmp(place, any, strlen(any)) || !strncmp(place, zeros, strlen(zeros))) /* the host that the data comes from */
        snprintf(place, sizeof place, "%.*s:%.*s", (int)(colon - endpoint), endpoint, (int)(where.number - port), (const char *)where.bytes + port);
    if (strcmp(place, asked)) {
        if (*asked) zmq_disconnect(recovery, asked);
        strcpy(asked, place);
        zmq_connect(recovery, asked);
        joined_at = 0;
    }
    if (joined_session && found == session) return; /* connected again; heartbeats show what was missed */
    if (joined_session) fprintf(stderr, "session %" PRIx64 " has ended\n", session);
    fprintf(stderr, "joins %.*s, session %" PRIx64 "\n", (int)name.number, (const char *)name.bytes, found);
    forget(next, next + HELD);
    session = found, joined_session = 1, begun = 0, next = head = 0, probe_at = 0, probe_wait = 10;
}

static void take_echo(Pack body) { /* name, [[topic, earliest, next, start, began], …], floor, page, more, life */
    Item fields = item(&body), name = item(&body), streams = item(&body);
    uint64_t start = 0, following = 0;
    int ours = 0;
    if (begun || name.type != 's' || streams.type != 'a') return;
    for (uint64_t n = 0; n < streams.number && !body.bad; n++) {
        Item head_fields = item(&body), its = item(&body);
        int is_ours = its.type == 's' && its.number == strlen(topic) && !memcmp(its.bytes, topic, its.number);
        uint64_t numbers[3] = {0};
        for (uint64_t at = 1; at < head_fields.number && !body.bad; at++) {
            if (at < 4) numbers[at - 1] = item(&body).number;
            else print(&body, NULL, 0);
        }
        if (is_ours) ours = 1, following = numbers[1], start = numbers[2];
    }
    uint64_t rest[3] = {0}; /* floor, page, more */
    for (uint64_t at = 2; at < fields.number && at < 5; at++) rest[at - 2] = item(&body).number;
    if (body.bad || (!ours && rest[2])) return; /* the stream is on another page */
    next = ours ? start : rest[0];
    if (head < following) head = following;
    begun = 1, joined_at = 0, nack_wait = 20, nack_at = now_ms();
    fprintf(stderr, "begins at %" PRIu64 "; the next one will be %" PRIu64 "\n", next, following);
}

static void take_data(Pack body, uint64_t sequence, uint64_t count) {
    Item columns = item(&body), values = item(&body);
    if (columns.type != 'a' || values.type != 'a' || values.number != count || body.bad) return;
    if (head < sequence + count) head = sequence + count;
    for (uint64_t n = sequence; begun && n < sequence + count; n++) { /* what came before the ECHO is asked for */
        const uint8_t *from = body.at;
        print(&body, NULL, 0);
        if (body.bad) return;
        if (n < next || n >= next + HELD || held[n % HELD].value) continue;
        held[n % HELD].length = (size_t)(body.at - from);
        held[n % HELD].value = malloc(held[n % HELD].length);
        if (!held[n % HELD].value) exit(1);
        memcpy(held[n % HELD].value, from, held[n % HELD].length);
        show();
    }
}

static void take_refused(Pack body) { /* topic, ranges, reason */
    Item fields = item(&body), its = item(&body), ranges = item(&body);
    Pack after = body;
    for (uint64_t n = 0; n < ranges.number; n++) print(&after, NULL, 0);
    Item reason = item(&after);
    if (after.bad || fields.number < 3 || its.number != strlen(topic) || memcmp(its.bytes, topic, its.number)) return;
    if (reason.number == 6 && !memcmp(reason.bytes, "budget", 6)) return; /* not now, so ask again */
    for (uint64_t n = 0; n < ranges.number; n++) {
        item(&body);
        uint64_t start = item(&body).number, stop = item(&body).number;
        if (!begun || start > next || stop <= next) continue; /* not its turn: it is refused again when it is */
        printf("lost %" PRIu64 " %" PRIu64 " %.*s\n", next, stop, (int)reason.number, (const char *)reason.bytes);
        forget(next, stop);
        next = stop;
        show();
    }
}

static uint64_t number_at(const uint8_t *at, int size) {
    Pack bytes = {at, at + size, 0};
    return big(&bytes, size);
}

static void take(const uint8_t *bytes, size_t size) {
    const uint8_t *zero = memchr(bytes, 0, size < 256 ? size : 256), *header = zero + 1;
    if (!zero || size < (size_t)(header - bytes) + HEADER || memcmp(header, "p2\x01", 3) || header[5]) return;
    Pack body = {header + HEADER, bytes + size, 0};
    if (number_at(header + 26, 4) != (uint64_t)(body.end - body.at)) return;
    uint64_t its_session = number_at(header + 6, 8), sequence = number_at(header + 14, 8);
    int is_ours = !strcmp((const char *)bytes, topic) && joined_session && its_session == session;
    if (header[3] == WELCOME || (header[3] == HEARTBEAT && is_ours)) closing = header[4] & CLOSING;
    if (header[3] == WELCOME) take_welcome(body, its_session);
    else if (header[3] == ECHO && its_session == probe) take_echo(body);
    else if (header[3] == DATA && is_ours) take_data(body, sequence, number_at(header + 22, 4));
    else if (header[3] == HEARTBEAT && is_ours && head < sequence) head = sequence;
    else if (header[3] == REFUSED && its_session == session) take_refused(body);
}

static void tick(void) {
    int64_t now = now_ms();
    if (joined_session && !begun && now >= probe_at) {
        send_probe();
        probe_at = now + probe_wait, probe_wait = probe_wait < 50 ? 2 * probe_wait : 100;
    }
    int complete = closing && next >= head; /* a publisher that closes waits for this */
    if (begun && (now >= joined_at || complete != sent_complete)) {
        send_joined(JOINED, complete);
        joined_at = now + 5000, sent_complete = complete;
    }
    if (begun && next < head && now >= nack_at) {
        send_nack();
        nack_at = now + nack_wait, nack_wait = nack_wait < 500 ? 2 * nack_wait : 1000;
    }
}

static void drain(void *socket) {
    zmq_msg_t message;
    while (left && !zmq_msg_init(&message) && zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) >= 0) {
        take(zmq_msg_data(&message), zmq_msg_size(&message));
        zmq_msg_close(&message);
    }
}

int main(int count, char **arguments) {
    uint8_t welcome[] = {0, 'p', '2', 1, WELCOME}, echo[15] = {0, 'p', '2', 1, ECHO};
    FILE *random = fopen("/dev/urandom", "rb");
    int linger_ms = 500;
    if (count < 3 || strlen(arguments[2]) > 255 || !strrchr(arguments[1], ':')) {
        fprintf(stderr, "usage: %s ENDPOINT TOPIC [COUNT]\n", arguments[0]);
        return 2;
    }
    endpoint = arguments[1], topic = arguments[2];
    if (count > 3) left = strtoull(arguments[3], NULL, 10);
    if (!random || fread(&me, 8, 1, random) != 1 || fread(&probe, 8, 1, random) != 1) return 1;
    void *context = zmq_ctx_new();
    data = zmq_socket(context, ZMQ_SUB);
    recovery = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(recovery, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(data, ZMQ_SUBSCRIBE, topic, strlen(topic) + 1); /* with its zero byte */
    zmq_setsockopt(data, ZMQ_SUBSCRIBE, welcome, sizeof welcome);
    for (int n = 0; n < 8; n++) echo[7 + n] = (uint8_t)(probe >> (56 - 8 * n));
    zmq_setsockopt(data, ZMQ_SUBSCRIBE, echo, sizeof echo);
    if (zmq_connect(data, endpoint)) { fprintf(stderr, "%s: %s\n", endpoint, zmq_strerror(zmq_errno())); return 2; }
    fprintf(stderr, "waits for %s\n", endpoint);
    while (left) {
        zmq_pollitem_t items[] = {{data, 0, ZMQ_POLLIN, 0}, {recovery, 0, ZMQ_POLLIN, 0}};
        zmq_poll(items, 2, 10);
        drain(data);
        drain(recovery);
        tick();
    }
    send_joined(LEAVE, 0);
    zmq_close(data);
    zmq_close(recovery); /* the context waits up to half a second for LEAVE to be sent */
    zmq_ctx_term(context);
    return 0;
}
