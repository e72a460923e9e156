/* A client of a Shoal server in C, without libraries: POSIX sockets, websocket frames and as much msgpack as it takes.
 *
 *   cc -O2 -Wall -Wextra -o shoal_client shoal_client.c -lm
 *   ./shoal_client 127.0.0.1 8700 [EPISODES]          SHOAL_TOKEN in the environment where the server wants one
 *
 * It plays CartPole: the cart is simulated here, and what it does is asked of `shoal serve RUN`. The parts to take into
 * a program of your own are shoal_connect(), shoal_act() and shoal_close(). Plain ws:// only: for wss:// put stunnel or
 * your TLS library between. docs/protocol.md is the specification.
 */
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define LARGEST (1 << 20) /* bytes of a message that is taken */

typedef struct {
    int socket;
    uint64_t seq;
    int64_t version; /* of the policy that chose the last action */
    char error[256]; /* what went wrong, in a sentence */
    unsigned char *in;
} Shoal;

static int failed(Shoal *shoal, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(shoal->error, sizeof shoal->error, format, list);
    va_end(list);
    return -1;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static int send_all(Shoal *shoal, const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t sent = send(shoal->socket, at, size, MSG_NOSIGNAL);
        if (sent <= 0) return failed(shoal, "the connection is lost");
        at += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int receive_all(Shoal *shoal, void *data, size_t size) {
    char *at = data;
    while (size > 0) {
        ssize_t got = recv(shoal->socket, at, size, 0);
        if (got <= 0) return failed(shoal, "the connection is lost, or the server is silent");
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

static int send_frame(Shoal *shoal, int opcode, const unsigned char *data, size_t size) {
    unsigned char head[14], *masked;
    size_t length = 2;
    head[0] = (unsigned char)(0x80 | opcode);
    if (size < 126) {
        head[1] = (unsigned char)(0x80 | size);
    } else if (size < 65536) {
        head[1] = 0x80 | 126;
        head[2] = (unsigned char)(size >> 8);
        head[3] = (unsigned char)size;
        length = 4;
    } else {
        head[1] = 0x80 | 127;
        for (int i = 0; i < 8; i++) head[2 + i] = (unsigned char)((uint64_t)size >> (56 - 8 * i));
        length = 10;
    }
    unsigned char mask[4];
    for (int i = 0; i < 4; i++) mask[i] = (unsigned char)rand();
    memcpy(head + length, mask, 4);
    if (send_all(shoal, head, length + 4)) return -1;
    if (!(masked = malloc(size ? size : 1))) return failed(shoal, "there is no memory");
    for (size_t i = 0; i < size; i++) masked[i] = data[i] ^ mask[i & 3];
    int result = send_all(shoal, masked, size);
    free(masked);
    return result;
}

/* The next message: its bytes in shoal->in, their number; pings are answered on the way. */
static long receive_frame(Shoal *shoal) {
    for (;;) {
        unsigned char head[8];
        if (receive_all(shoal, head, 2)) return -1;
        int final = head[0] & 0x80, opcode = head[0] & 15;
        uint64_t size = head[1] & 127;
        int wide = size == 126 ? 2 : size == 127 ? 8 : 0;
        if (wide) {
            if (receive_all(shoal, head, (size_t)wide)) return -1;
            size = 0;
            for (int i = 0; i < wide; i++) size = size << 8 | head[i];
        }
        if (size > LARGEST) return failed(shoal, "the server sent a message of %llu bytes", (unsigned long long)size);
        if (receive_all(shoal, shoal->in, (size_t)size)) return -1;
        if (opcode == 9 && send_frame(shoal, 10, shoal->in, (size_t)size)) return -1;
        if (opcode == 8) return failed(shoal, "the server closed the connection (code %d)", size >= 2 ? shoal->in[0] << 8 | shoal->in[1] : 0);
        if (opcode == 2 && final) return (long)size;
        if (opcode < 8 && opcode != 2) return failed(shoal, "the server sent a message of an unknown kind");
    }
}

/* ---- msgpack ---------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned char bytes[4096];
    size_t size;
} Out;

static void put(Out *out, const void *data, size_t size) {
    if (out->size + size <= sizeof out->bytes) memcpy(out->bytes + out->size, data, size);
    out->size += size;
}

static void put_byte(Out *out, int byte) {
    unsigned char one = (unsigned char)byte;
    put(out, &one, 1);
}

static void put_text(Out *out, const char *text) {
    size_t size = strlen(text);
    put_byte(out, 0xda);
    put_byte(out, (int)(size >> 8));
    put_byte(out, (int)size);
    put(out, text, size);
}

static void put_number(Out *out, uint64_t number) {
    put_byte(out, 0xcf);
    for (int i = 7; i >= 0; i--) put_byte(out, (int)(number >> (8 * i)) & 255);
}

static void put_floats(Out *out, const float *values, unsigned count) {
    put_byte(out, 0x84);
    put_text(out, "__ndarray__");
    put_byte(out, 0xc3);
    put_text(out, "data");
    put_byte(out, 0xc5);
    put_byte(out, (int)(4 * count >> 8));
    put_byte(out, (int)(4 * count));
    put(out, values, 4 * count); /* little-endian machines; others swap here */
    put_text(out, "dtype");
    put_text(out, "<f4");
    put_text(out, "shape");
    put_byte(out, 0x91);
    put_number(out, count);
}

/* A value that was read; maps and lists are walked by their caller. */
typedef struct {
    enum { NONE, TRUTH, WHOLE, REAL, TEXT, BYTES, LIST, MAP } kind;
    int64_t whole;
    double real;
    const unsigned char *data;
    uint32_t size;
} Value;

typedef struct {
    const unsigned char *at, *end;
} In;

static int take(In *in, int size, uint64_t *number) {
    if (in->end - in->at < size) return -1;
    *number = 0;
    for (int i = 0; i < size; i++) *number = *number << 8 | *in->at++;
    return 0;
}

static int next(In *in, Value *value) {
    uint64_t n;
    memset(value, 0, sizeof *value);
    if (take(in, 1, &n)) return -1;
    int first = (int)n;
    uint32_t size = 0;
    if (first < 0x80) return value->kind = WHOLE, value->whole = first, 0;
    if (first >= 0xe0) return value->kind = WHOLE, value->whole = first - 256, 0;
    if (first < 0x90) return value->kind = MAP, value->size = first & 15, 0;
    if (first < 0xa0) return value->kind = LIST, value->size = first & 15, 0;
    if (first < 0xc0) {
        value->kind = TEXT;
        size = first & 31;
    } else if (first == 0xc0) {
        return value->kind = NONE, 0;
    } else if (first == 0xc2 || first == 0xc3) {
        return value->kind = TRUTH, value->whole = first & 1, 0;
    } else if (first >= 0xc4 && first <= 0xc6) {
        if (take(in, 1 << (first - 0xc4), &n)) return -1;
        value->kind = BYTES;
        size = (uint32_t)n;
    } else if (first == 0xca || first == 0xcb) {
        if (take(in, first == 0xca ? 4 : 8, &n)) return -1;
        value->kind = REAL;
        if (first == 0xca) {
            uint32_t bits = (uint32_t)n;
            float small;
            memcpy(&small, &bits, 4);
            value->real = small;
        } else {
            memcpy(&value->real, &n, 8);
        }
        return 0;
    } else if (first >= 0xcc && first <= 0xd3) {
        int wide = 1 << ((first - 0xcc) & 3);
        if (take(in, wide, &n)) return -1;
        value->kind = WHOLE;
        value->whole = first < 0xd0 || wide == 8 ? (int64_t)n : (int64_t)(n << (64 - 8 * wide)) >> (64 - 8 * wide);
        return 0;
    } else if (first >= 0xd9 && first <= 0xdb) {
        if (take(in, 1 << (first - 0xd9), &n)) return -1;
        value->kind = TEXT;
        size = (uint32_t)n;
    } else if (first >= 0xdc && first <= 0xdf) {
        if (take(in, first & 1 ? 4 : 2, &n)) return -1;
        return value->kind = first < 0xde ? LIST : MAP, value->size = (uint32_t)n, 0;
    } else {
        return -1;
    }
    if ((uint64_t)(in->end - in->at) < size) return -1;
    value->data = in->at;
    value->size = size;
    in->at += size;
    return 0;
}

static int skip(In *in, const Value *value, int depth) {
    if (depth > 32) return -1;
    uint64_t parts = value->kind == LIST ? value->size : value->kind == MAP ? 2 * (uint64_t)value->size : 0;
    for (uint64_t i = 0; i < parts; i++) {
        Value part;
        if (next(in, &part) || skip(in, &part, depth + 1)) return -1;
    }
    return 0;
}

static int is(const Value *value, const char *text) {
    return value->kind == TEXT && value->size == strlen(text) && !memcmp(value->data, text, value->size);
}

/* ---- the client ------------------------------------------------------------------------------------------------- */

/* The next message, which must be of this type; its number under `field`, if there is one, into *number. */
static int expect(Shoal *shoal, const char *type, const char *field, int64_t *number) {
    long size = receive_frame(shoal);
    if (size < 0) return -1;
    In in = {shoal->in, shoal->in + size};
    Value map, key, value, kind = {0}, said = {0};
    if (next(&in, &map) || map.kind != MAP) return failed(shoal, "the server sent what is no message");
    for (uint32_t i = 0; i < map.size; i++) {
        if (next(&in, &key) || next(&in, &value) || skip(&in, &value, 0)) return failed(shoal, "the server sent what is no message");
        if (is(&key, "type")) kind = value;
        if (is(&key, "message")) said = value;
        if (is(&key, "version") && value.kind == WHOLE) shoal->version = value.whole;
        if (field && is(&key, field) && value.kind == WHOLE) *number = value.whole;
    }
    if (is(&kind, "error")) return failed(shoal, "%.*s", (int)(said.size > 250 ? 250 : said.size), said.data ? (const char *)said.data : "");
    if (!is(&kind, type)) return failed(shoal, "the server sent %.*s and not %s", (int)kind.size, kind.data ? (const char *)kind.data : "", type);
    return 0;
}

void shoal_close(Shoal *shoal) {
    if (shoal->socket >= 0) {
        Out bye = {.size = 0};
        put_byte(&bye, 0x81);
        put_text(&bye, "type");
        put_text(&bye, "bye");
        send_frame(shoal, 2, bye.bytes, bye.size);
        close(shoal->socket);
    }
    free(shoal->in);
    shoal->socket = -1;
    shoal->in = NULL;
}

/* 0, or -1 with a sentence in shoal->error. `token` may be NULL. */
int shoal_connect(Shoal *shoal, const char *host, const char *port, const char *token) {
    memset(shoal, 0, sizeof *shoal);
    shoal->socket = -1;
    if (!(shoal->in = malloc(LARGEST))) return failed(shoal, "there is no memory");
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found)) return failed(shoal, "%s:%s is unknown", host, port);
    for (struct addrinfo *each = found; each && shoal->socket < 0; each = each->ai_next) {
        shoal->socket = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
        if (shoal->socket >= 0 && connect(shoal->socket, each->ai_addr, each->ai_addrlen)) {
            close(shoal->socket);
            shoal->socket = -1;
        }
    }
    freeaddrinfo(found);
    if (shoal->socket < 0) return failed(shoal, "nothing listens on %s:%s", host, port);
    int yes = 1;
    struct timeval patience = {.tv_sec = 30};
    setsockopt(shoal->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(shoal->socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char head[1024];
    int length = snprintf(head, sizeof head,
                          "GET / HTTP/1.1\r\nHost: %s:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2hvYWwgc2hvYWwgc2hvYQ==\r\n\r\n",
                          host, port);
    if (length >= (int)sizeof head) return failed(shoal, "the host's name is too long");
    if (send_all(shoal, head, (size_t)length)) return -1;
    size_t got = 0;
    while (got < 4 || memcmp(head + got - 4, "\r\n\r\n", 4)) {
        if (got == sizeof head - 1) return failed(shoal, "this is no Shoal server");
        if (receive_all(shoal, head + got, 1)) return -1;
        got++;
    }
    if (got < 12 || memcmp(head, "HTTP/1.1 101", 12)) return failed(shoal, "the server answers %.*s", 12, head);
    if (expect(shoal, "greeting", NULL, NULL)) return -1;
    Out hello = {.size = 0};
    put_byte(&hello, token ? 0x84 : 0x83);
    put_text(&hello, "type");
    put_text(&hello, "hello");
    put_text(&hello, "protocol");
    put_byte(&hello, 1);
    put_text(&hello, "role");
    put_text(&hello, "player");
    if (token) {
        put_text(&hello, "token");
        put_text(&hello, token);
    }
    if (hello.size > sizeof hello.bytes) return failed(shoal, "the token is too long");
    if (send_frame(shoal, 2, hello.bytes, hello.size)) return -1;
    return expect(shoal, "welcome", NULL, NULL);
}

/* The action for an observation of `count` numbers; `begins`: an episode begins. 0, or -1 with a sentence. */
int shoal_act(Shoal *shoal, const float *observation, unsigned count, int begins, int64_t *action) {
    Out out = {.size = 0};
    put_byte(&out, 0x84);
    put_text(&out, "type");
    put_text(&out, "act");
    put_text(&out, "seq");
    put_number(&out, ++shoal->seq);
    put_text(&out, "reset");
    put_byte(&out, begins ? 0xc3 : 0xc2);
    put_text(&out, "observation");
    put_floats(&out, observation, count);
    if (out.size > sizeof out.bytes) return failed(shoal, "the observation is too large for this example");
    if (send_frame(shoal, 2, out.bytes, out.size)) return -1;
    return expect(shoal, "action", "action", action);
}

/* ---- CartPole --------------------------------------------------------------------------------------------------- */

static int fell(double state[4], int action) {
    double force = action ? 10 : -10, cosine = cos(state[2]), sine = sin(state[2]);
    double pushed = (force + 0.05 * state[3] * state[3] * sine) / 1.1;
    double turning = (9.8 * sine - cosine * pushed) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    double moving = pushed - 0.05 * turning * cosine / 1.1;
    state[0] += 0.02 * state[1];
    state[1] += 0.02 * moving;
    state[2] += 0.02 * state[3];
    state[3] += 0.02 * turning;
    return fabs(state[0]) > 2.4 || fabs(state[2]) > 0.20943951;
}

int main(int count, char **words) {
    if (count < 3) return fprintf(stderr, "usage: %s HOST PORT [EPISODES]\n", words[0]), 2;
    Shoal shoal;
    int episodes = count > 3 ? atoi(words[3]) : 5, problem = shoal_connect(&shoal, words[1], words[2], getenv("SHOAL_TOKEN"));
    for (int episode = 0; episode < episodes && !problem; episode++) {
        double state[4];
        for (int i = 0; i < 4; i++) state[i] = rand() / (double)RAND_MAX * 0.1 - 0.05;
        int steps = 0, over = 0;
        while (!over && steps < 500) {
            float seen[4];
            int64_t action = 0;
            for (int i = 0; i < 4; i++) seen[i] = (float)state[i];
            if ((problem = shoal_act(&shoal, seen, 4, steps == 0, &action))) break;
            over = fell(state, (int)action);
            steps++;
        }
        if (!problem) printf("episode %d: %d steps, version %lld of the policy\n", episode + 1, steps, (long long)shoal.version);
    }
    if (problem) fprintf(stderr, "shoal_client: %s\n", shoal.error);
    shoal_close(&shoal);
    return problem ? 1 : 0;
}
