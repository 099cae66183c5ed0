/* The same receiver for every server: any number of connections in one process and one thread. What arrives is copied out of the
 * kernel, counted and dropped.
 *
 * usage: receiver --protocol zmtp|http|raw --port PORT [--clients N] [--buffer BYTES] ...
 *   one large file:   --size BYTES [--path PATH] [--chunk BYTES] [--ahead N]
 *   many files:       [--repeat N] [--ahead N] PATH:SIZE...
 *
 * Over ZMTP a large file is asked for in chunks, `--ahead` requests at a time; over the others at once. Many files are asked for
 * over one connection, one after another unless `--ahead` says otherwise, and the time of each is reported. */
#define _GNU_SOURCE
#include "peer.h"
#include "wire.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 256, CLIENTS_MOST = 10000, FILES_MOST = 1000, AHEAD_MOST = 1000 };

struct connection {
    int fd;
    uint64_t asked, answered; /* jobs */
    double asked_at;
    struct answer answer;
};

static const struct protocol *protocol;
static uint64_t ahead = 10;
static uint64_t bytes_received;

/* The jobs of a connection: the chunks of one file, or all files `repeat` times over. */
static const char *large_path;
static uint64_t large_size, chunk;
static struct job files[FILES_MOST];
static uint64_t file_count, repeat = 1, job_count;
static double *seconds_each;

static struct job job_at(uint64_t index) {
    if (file_count > 0) return files[index % file_count];
    uint64_t offset = index * chunk;
    uint64_t left = large_size - offset;
    return (struct job){large_path, offset, left < chunk ? left : chunk};
}

static void ask(struct connection *connection) {
    static unsigned char requests[AHEAD_MOST * REQUEST_MOST];
    size_t size = 0;
    while (connection->asked < job_count && connection->asked - connection->answered < ahead) {
        struct job job = job_at(connection->asked++);
        size += protocol->request(&job, requests + size);
    }
    if (size == 0) return;
    connection->asked_at = now_seconds();
    write_all(connection->fd, requests, size, 0);
}

static void begin_head(struct answer *answer) {
    answer->in_body = false;
    answer->head_size = 0;
    answer->head_wanted = protocol->head_least;
}

static void end_body(struct connection *connection) {
    if (seconds_each != NULL) seconds_each[connection->answered] = now_seconds() - connection->asked_at;
    connection->answered++;
    begin_head(&connection->answer);
    ask(connection);
}

static void begin_body(struct connection *connection) {
    struct answer *answer = &connection->answer;
    if (connection->answered == connection->asked) die_because("server", "sent what was not asked for");
    if (answer->body != job_at(connection->answered).size) die_because("server", "sent a body of another size than asked for");
    answer->in_body = true;
    if (answer->body == 0) end_body(connection);
}

/* Collects a head. Returns how much of the data it took. */
static size_t take_head(struct connection *connection, const unsigned char *data, size_t size) {
    struct answer *answer = &connection->answer;
    size_t missing = answer->head_wanted - answer->head_size;
    size_t taken = size < missing ? size : missing;
    memcpy(answer->head + answer->head_size, data, taken);
    answer->head_size += taken;
    if (answer->head_size < answer->head_wanted) return taken;
    switch (protocol->understand(connection->fd, answer)) {
    case HEAD_INCOMPLETE:
        if (answer->head_wanted > HEAD_MOST) die_because("server", "sent a head that is too long");
        break;
    case HEAD_HANDSHAKE:
        begin_head(answer);
        if (answer->ready && connection->asked == 0) ask(connection);
        break;
    case HEAD_BODY: begin_body(connection); break;
    }
    return taken;
}

/* False: the connection has all that it was to get. */
static bool take(struct connection *connection, const unsigned char *data, size_t size) {
    struct answer *answer = &connection->answer;
    while (size > 0) {
        size_t taken;
        if (answer->in_body) {
            taken = answer->body < size ? (size_t)answer->body : size;
            answer->body -= taken;
            bytes_received += taken;
            if (answer->body == 0) end_body(connection);
        } else {
            taken = take_head(connection, data, size);
        }
        data += taken;
        size -= taken;
    }
    return connection->answered < job_count;
}

/* One receive. False: the connection is done with. */
static bool receive(struct connection *connection, unsigned char *buffer, size_t buffer_bytes, int flags) {
    ssize_t got = recv(connection->fd, buffer, buffer_bytes, flags);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) return true;
        die("recv");
    }
    if (got == 0) die_because("server", "closed the connection too early");
    return take(connection, buffer, (size_t)got);
}

static void run_many(struct connection *connections, size_t count, unsigned char *buffer, size_t buffer_bytes) {
    int poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) die("epoll_create1");
    for (size_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].fd, &event) != 0) die("epoll_ctl");
    }
    struct epoll_event ready[EVENTS_AT_ONCE];
    for (size_t unfinished = count; unfinished > 0;) {
        int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, -1);
        if (events < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct connection *connection = ready[i].data.ptr;
            if (receive(connection, buffer, buffer_bytes, MSG_DONTWAIT)) continue;
            close(connection->fd);
            unfinished--;
        }
    }
    close(poller);
}

static void add_file(const char *argument) {
    char *path = strdup(argument);
    char *colon = path == NULL ? NULL : strrchr(path, ':');
    if (colon == NULL || file_count == FILES_MOST) die_because(argument, "not PATH:SIZE, or too many");
    *colon = '\0';
    files[file_count++] = (struct job){path, 0, parse_count(colon + 1, INT64_MAX)};
}

static void print_each(void) {
    for (uint64_t file = 0; file < file_count; file++) {
        printf("%s[", file == 0 ? "\"each\":[" : ",");
        for (uint64_t i = 0; i < repeat; i++) printf("%s%.9f", i == 0 ? "" : ",", seconds_each[i * file_count + file]);
        printf("]");
    }
    printf("],");
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"protocol", required_argument, NULL, 'P'}, {"port", required_argument, NULL, 'p'},
        {"clients", required_argument, NULL, 'n'},  {"buffer", required_argument, NULL, 'b'},
        {"size", required_argument, NULL, 's'},     {"path", required_argument, NULL, 'f'},
        {"chunk", required_argument, NULL, 'c'},    {"ahead", required_argument, NULL, 'a'},
        {"repeat", required_argument, NULL, 'r'},   {NULL, 0, NULL, 0},
    };
    uint16_t port = 0;
    size_t count = 1, buffer_bytes = 1 << 20;
    uint64_t ahead_given = 0;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'P': protocol = protocol_named(optarg); break;
        case 'p': port = (uint16_t)parse_count(optarg, UINT16_MAX); break;
        case 'n': count = parse_count(optarg, CLIENTS_MOST); break;
        case 'b': buffer_bytes = parse_count(optarg, 1 << 30); break;
        case 's': large_size = parse_count(optarg, INT64_MAX); break;
        case 'f': large_path = optarg; break;
        case 'c': chunk = parse_count(optarg, INT64_MAX); break;
        case 'a': ahead_given = parse_count(optarg, AHEAD_MOST); break;
        case 'r': repeat = parse_count(optarg, 1000000); break;
        default: return 2;
        }
    }
    for (int i = optind; i < argc; i++) add_file(argv[i]);
    if (protocol == NULL || port == 0 || count == 0 || repeat == 0 || (large_size == 0) == (file_count == 0))
        die_because("usage", "receiver --protocol zmtp|http|raw --port PORT (--size BYTES | PATH:SIZE...)");
    if (file_count > 0) {
        if (count > 1) die_because("usage", "many files are for one client");
        ahead = ahead_given > 0 ? ahead_given : 1;
        job_count = file_count * repeat;
        seconds_each = calloc(job_count, sizeof *seconds_each);
        if (seconds_each == NULL) die("calloc");
    } else {
        if (chunk == 0) chunk = 1 << 20;
        if (strcmp(protocol->name, "zmtp") != 0) chunk = large_size;
        if (ahead_given > 0) ahead = ahead_given;
        job_count = (large_size + chunk - 1) / chunk;
    }
    prepare_process();
    allow_many_descriptors();
    unsigned char *buffer = malloc(buffer_bytes);
    struct connection *connections = calloc(count, sizeof *connections);
    if (buffer == NULL || connections == NULL) die("malloc");

    double begin = now_seconds();
    for (size_t i = 0; i < count; i++) {
        struct connection *connection = &connections[i];
        connection->fd = connect_loopback(port);
        protocol->open(connection->fd, &connection->answer);
        if (connection->answer.ready) ask(connection);
    }
    if (count > 1) run_many(connections, count, buffer, buffer_bytes);
    else while (receive(&connections[0], buffer, buffer_bytes, 0)) continue;
    double seconds = now_seconds() - begin;
    if (seconds_each != NULL) {
        printf("{");
        print_each();
        printf("\"bytes\":%llu,\"seconds\":%.6f}\n", (unsigned long long)bytes_received, seconds);
    } else {
        report(bytes_received, seconds);
    }
    return 0;
}
