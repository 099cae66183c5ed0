/* Workers that echo, any number of them in one thread: what a broker can do must not be hidden by what its workers need.
 *
 * usage: load_worker --port PORT [--dialect raw|0.1|0.2|majortomo] [--service NAME] [--services N] [--workers N]
 *
 * The workers share the services evenly. They beat every 2.5 s. */
#include "load.h"
#include "peer.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

static const double HEARTBEAT_SECONDS = 2.5;

static const struct dialect *dialect;
static struct stream *streams;
static size_t workers = 1;
static int poller;

static void control(struct stream *stream, enum mdp_command command, const char *service) {
    struct frame frames[HEAD_FRAMES_MOST];
    size_t count = mdp_control(dialect, command, service, frames);
    for (size_t i = 0; i < count; i++) stream_put(stream, frames[i].data, frames[i].size, i + 1 < count);
}

static void reply(struct stream *stream, const struct frame *frames, size_t count, size_t address) {
    struct frame head[HEAD_FRAMES_MOST];
    size_t head_count = mdp_reply_head(dialect, frames[address], head);
    for (size_t i = 0; i < head_count; i++) stream_put(stream, head[i].data, head[i].size, true);
    for (size_t i = address + 2; i < count; i++) stream_put(stream, frames[i].data, frames[i].size, i + 1 < count);
}

static void answer(struct stream *stream) {
    struct frame frames[MESSAGE_FRAMES_MOST];
    size_t address;
    if (dialect == NULL) { /* everything goes back as it came, whole frames or not */
        buffer_append(&stream->out, stream->in.data + stream->in.begin, stream->in.end - stream->in.begin);
        stream->in.begin = stream->in.end;
        return;
    }
    for (size_t count; (count = stream_next(stream, frames)) > 0;) {
        switch (mdp_understand(dialect, frames, count, &address)) {
        case MDP_REQUEST: reply(stream, frames, count, address); break;
        case MDP_DISCONNECT: die_because("broker", "disconnected a worker");
        default: break;
        }
    }
}

static void beat(void) {
    for (size_t i = 0; i < workers; i++) {
        control(&streams[i], MDP_HEARTBEAT, NULL);
        stream_flush(&streams[i], poller, &streams[i]);
    }
}

static _Noreturn void serve(void) {
    struct epoll_event ready[EVENTS_AT_ONCE];
    double next_beat = now_seconds() + HEARTBEAT_SECONDS;
    for (;;) {
        int timeout_ms = dialect == NULL ? -1 : (int)(HEARTBEAT_SECONDS * 1e3 / 4);
        int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, timeout_ms);
        if (events < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct stream *stream = ready[i].data.ptr;
            if (!stream_read(stream)) die_because("broker", "closed the connection");
            answer(stream);
            stream_flush(stream, poller, stream);
        }
        if (dialect != NULL && now_seconds() > next_beat) {
            beat();
            next_beat = now_seconds() + HEARTBEAT_SECONDS;
        }
    }
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'},     {"dialect", required_argument, NULL, 'd'},
        {"service", required_argument, NULL, 's'},  {"services", required_argument, NULL, 'v'},
        {"workers", required_argument, NULL, 'n'},  {NULL, 0, NULL, 0},
    };
    uint16_t port = 0;
    size_t services = 1;
    const char *service = "echo";
    dialect = dialect_named("0.1");
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': port = (uint16_t)parse_count(optarg, UINT16_MAX); break;
        case 'd': dialect = load_dialect(optarg); break;
        case 's': service = optarg; break;
        case 'v': services = parse_count(optarg, CONNECTIONS_MOST); break;
        case 'n': workers = parse_count(optarg, CONNECTIONS_MOST); break;
        default: return 2;
        }
    }
    if (port == 0 || workers == 0 || services == 0) die_because("usage", "load_worker --port PORT ...");
    prepare_process();
    allow_many_descriptors();
    poller = poller_open();
    streams = calloc(workers, sizeof *streams);
    if (streams == NULL) die("calloc");
    load_connect(streams, workers, port, dialect, RAW_WORKER, poller);
    for (size_t i = 0; dialect != NULL && i < workers; i++) {
        char name[SERVICE_MOST + 1];
        service_name(name, service, i % services, services);
        control(&streams[i], MDP_READY, name);
        stream_flush(&streams[i], poller, &streams[i]);
    }
    announce(0);
    serve();
}
