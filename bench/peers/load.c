#include "load.h"
#include "peer.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

/* Handshakes that may be in progress at once: less than the servers' backlog. */
enum { CONNECTING_AT_ONCE = 500 };

const struct dialect *load_dialect(const char *name) { return strcmp(name, "raw") == 0 ? NULL : dialect_named(name); }

static void shake_hands(struct stream *streams, size_t from, size_t to, int poller) {
    struct epoll_event ready[EVENTS_AT_ONCE];
    struct frame frames[MESSAGE_FRAMES_MOST];
    for (size_t waiting = to - from; waiting > 0;) {
        int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, -1);
        if (events < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct stream *stream = ready[i].data.ptr;
            if (stream < streams + from || stream->ready) continue;
            if (!stream_read(stream)) die_because("server", "closed the connection");
            if (stream_next(stream, frames) > 0) die_because("server", "sent a message unasked");
            if (stream->ready) waiting--;
        }
    }
}

void load_connect(struct stream *streams, size_t count, uint16_t port, const struct dialect *dialect, char raw_role, int poller) {
    for (size_t from = 0; from < count;) {
        size_t to = count - from < CONNECTING_AT_ONCE ? count : from + CONNECTING_AT_ONCE;
        for (size_t i = from; i < to; i++) {
            if (dialect != NULL) {
                stream_connect_zmtp(&streams[i], port);
            } else {
                stream_connect(&streams[i], port);
                streams[i].greeted = streams[i].ready = true;
                buffer_append(&streams[i].out, &raw_role, 1);
            }
            stream_watch(&streams[i], poller, &streams[i]);
            if (dialect == NULL) stream_flush(&streams[i], poller, &streams[i]);
        }
        if (dialect != NULL) shake_hands(streams, from, to, poller);
        from = to;
    }
}
