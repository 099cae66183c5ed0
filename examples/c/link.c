#include "towpath.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MESSAGE_BYTES_MAX ((int64_t)64 << 20)
#define HEARTBEAT 2000 // ms
#define SILENCE 8000   // after which a server that answers no heartbeat counts as lost
#define PAUSE 300      // between connections
#define LINGER 1000
#define EVENTS "inproc://events" // where the dealer says what becomes of its connection, within its context

_Noreturn void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

// Reads the value of a line such as `public-key = "..."`.
static bool read_field(const char *path, const char *name, char value[41]) {
    FILE *file = fopen(path, "r");
    if (!file) die("%s: %s", path, strerror(errno));
    char line[256], found[32];
    bool has = false;
    while (!has && fgets(line, sizeof line, file))
        has = sscanf(line, " %31[a-z-] = \"%40[^\n]\"", found, value) == 2 && strcmp(found, name) == 0 && strlen(value) == 40;
    fclose(file);
    return has;
}

keys read_keys(int count, char **files) {
    keys keys = {.used = count > 0};
    if (count == 0) return keys;
    if (count != 2) die("CURVE needs two files: the client's secret key and the server's public key");
    if (!read_field(files[0], "public-key", keys.public_key) || !read_field(files[0], "secret-key", keys.secret_key))
        die("%s has no secret key", files[0]);
    if (!read_field(files[1], "public-key", keys.server_key)) die("%s has no public key", files[1]);
    return keys;
}

static void set(void *socket, int option, int value) { zmq_setsockopt(socket, option, &value, sizeof value); }

static link_to open_link(const char *endpoint, const keys *keys) {
    void *context = zmq_ctx_new();
    link_to link = {context, zmq_socket(context, ZMQ_DEALER), zmq_socket(context, ZMQ_PAIR), endpoint};
    int64_t most = MESSAGE_BYTES_MAX;
    set(link.dealer, ZMQ_SNDHWM, 0); // how much is in flight is up to the programs
    zmq_setsockopt(link.dealer, ZMQ_MAXMSGSIZE, &most, sizeof most);
    // libzmq would make the next connection without a word, but what was asked for must be asked for again.
    set(link.dealer, ZMQ_RECONNECT_IVL, -1);
    set(link.dealer, ZMQ_LINGER, 0); // of a connection that is lost
    set(link.dealer, ZMQ_HEARTBEAT_IVL, HEARTBEAT);
    set(link.dealer, ZMQ_HEARTBEAT_TIMEOUT, SILENCE);
    if (keys->used) {
        zmq_setsockopt(link.dealer, ZMQ_CURVE_SERVERKEY, keys->server_key, 41);
        zmq_setsockopt(link.dealer, ZMQ_CURVE_PUBLICKEY, keys->public_key, 41);
        if (zmq_setsockopt(link.dealer, ZMQ_CURVE_SECRETKEY, keys->secret_key, 41) != 0)
            die("the keys can't be used: %s", zmq_strerror(errno));
    }
    int events = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    zmq_socket_monitor(link.dealer, EVENTS, events);
    zmq_connect(link.monitor, EVENTS);
    if (zmq_connect(link.dealer, endpoint) != 0) die("%s: %s", endpoint, zmq_strerror(errno));
    return link;
}

static void close_link(link_to *link, int linger) {
    // First: libzmq's thread would wait for ever for somebody to take its events.
    zmq_socket_monitor(link->dealer, NULL, 0);
    set(link->dealer, ZMQ_LINGER, linger);
    zmq_close(link->dealer);
    zmq_close(link->monitor);
    zmq_ctx_term(link->context);
}

bool send_frames(link_to *link, int count, const void *const *frames, const size_t *sizes) {
    for (int n = 0; n < count; n++)
        // Without a limit to the queue there is only no place for it when there is no connection.
        if (zmq_send(link->dealer, frames[n], sizes[n], ZMQ_DONTWAIT | (n + 1 < count ? ZMQ_SNDMORE : 0)) < 0) {
            if (errno == EAGAIN) return false;
            die("%s: %s", link->endpoint, zmq_strerror(errno));
        }
    return true;
}

bool send_words(link_to *link, int count, const char *const *words) {
    size_t sizes[FRAMES_MAX];
    for (int n = 0; n < count; n++) sizes[n] = strlen(words[n]);
    return send_frames(link, count, (const void *const *)words, sizes);
}

// Reads an event of the dealer, which says that the connection is lost; ends the program if the server refuses us.
static void read_event(link_to *link) {
    uint8_t event[6];
    uint16_t kind;
    uint32_t value;
    zmq_recv(link->monitor, event, sizeof event, 0);
    zmq_recv(link->monitor, NULL, 0, 0); // the endpoint
    memcpy(&kind, event, 2);
    memcpy(&value, event + 2, 4);
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        die("%s refuses us (%u): the client's key, or the server's, isn't the right one", link->endpoint, value);
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        die("%s refuses us (%#x): only one side has keys, or it isn't Towpath", link->endpoint, value);
}

enum received receive(link_to *link, long timeout, message *message) {
    zmq_pollitem_t items[] = {{link->dealer, 0, ZMQ_POLLIN, 0}, {link->monitor, 0, ZMQ_POLLIN, 0}};
    int ready = zmq_poll(items, 2, timeout);
    if (ready < 0 && errno != EINTR) die("%s: %s", link->endpoint, zmq_strerror(errno));
    if (ready <= 0) return TIMEOUT;
    // What came before the end counts, so the dealer goes first.
    if (!(items[0].revents & ZMQ_POLLIN)) {
        read_event(link);
        return LOST;
    }
    message->count = 0;
    bool more = true;
    while (more) {
        if (message->count == FRAMES_MAX) die("a message of more than %d frames", FRAMES_MAX);
        zmq_msg_t *frame = &message->frames[message->count++];
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, link->dealer, 0) < 0) die("%s: %s", link->endpoint, zmq_strerror(errno));
        more = zmq_msg_more(frame);
    }
    return MESSAGE;
}

void close_message(message *message) {
    for (int n = 0; n < message->count; n++) zmq_msg_close(&message->frames[n]);
}

const char *bytes_of(message *message, int frame, size_t *size) {
    *size = zmq_msg_size(&message->frames[frame]);
    return zmq_msg_data(&message->frames[frame]);
}

bool is_word(message *message, int frame, const char *word) {
    size_t size;
    const char *bytes = bytes_of(message, frame, &size);
    return size == strlen(word) && memcmp(bytes, word, size) == 0;
}

int64_t number_of(message *message, int frame) {
    char text[24] = "";
    size_t size;
    const char *bytes = bytes_of(message, frame, &size);
    if (size == 0 || size >= sizeof text) die("a number of %zu digits", size);
    memcpy(text, bytes, size);
    char *end;
    errno = 0;
    int64_t number = strtoll(text, &end, 10);
    if (*end || errno || number < 0) die("%s is no number", text);
    return number;
}

void keep(char *endpoints, const keys *keys, bool (*session)(link_to *link, void *state), void *state) {
    char *at = endpoints;
    for (size_t end = strlen(endpoints);;) {
        at[strcspn(at, ",")] = 0;
        link_to link = open_link(at, keys);
        bool done = session(&link, state);
        close_link(&link, done ? LINGER : 0);
        if (done) return;
        fprintf(stderr, "%s: the connection is lost\n", at);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE * 1000000L}, NULL);
        at += strlen(at) + 1;
        if (at > endpoints + end) at = endpoints;
    }
}
