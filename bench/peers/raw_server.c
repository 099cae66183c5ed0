/* A file server without a messaging layer: what the system calls alone can do. A thread a connection.
 *
 * usage: raw_server --how copy|mmap|sendfile|splice [--buffer BYTES] [--congestion NAME] FILE...
 *
 * `copy` reads and writes through a buffer: 4 KiB is the traditional way. The header always leaves with the first data. */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIPE_BYTES = 1 << 20, SENDFILE_MOST = 0x7ffff000 };

/* Sends `length` bytes of a file from its beginning. False: the receiver went away. */
typedef bool (*sender)(int to, int from, uint64_t length);

static size_t buffer_bytes = 65536;

static bool send_fully(int to, const char *data, size_t size) {
    while (size > 0) {
        ssize_t sent = send(to, data, size, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) continue;
            return false;
        }
        data += sent;
        size -= (size_t)sent;
    }
    return true;
}

static bool send_by_copy(int to, int from, uint64_t length) {
    static __thread char *buffer = NULL;
    if (buffer == NULL && (buffer = malloc(buffer_bytes)) == NULL) die("malloc");
    while (length > 0) {
        ssize_t got = read(from, buffer, length < buffer_bytes ? length : buffer_bytes);
        if (got <= 0) die("read");
        if (!send_fully(to, buffer, (size_t)got)) return false;
        length -= (uint64_t)got;
    }
    return true;
}

static bool send_by_mmap(int to, int from, uint64_t length) {
    if (length == 0) return true;
    char *map = mmap(NULL, length, PROT_READ, MAP_SHARED, from, 0);
    if (map == MAP_FAILED) die("mmap");
    madvise(map, length, MADV_SEQUENTIAL);
    bool sent = send_fully(to, map, length);
    munmap(map, length);
    return sent;
}

static bool send_by_sendfile(int to, int from, uint64_t length) {
    while (length > 0) {
        ssize_t sent = sendfile(to, from, NULL, length < SENDFILE_MOST ? length : SENDFILE_MOST);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        length -= (uint64_t)sent;
    }
    return true;
}

static bool send_by_splice(int to, int from, uint64_t length) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) die("pipe");
    fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES);
    bool sent = true;
    while (length > 0 && sent) {
        ssize_t in_pipe = splice(from, NULL, ends[1], NULL, length < PIPE_BYTES ? length : PIPE_BYTES, SPLICE_F_MOVE);
        if (in_pipe <= 0) die("splice from the file");
        length -= (uint64_t)in_pipe;
        while (in_pipe > 0 && sent) {
            ssize_t out = splice(ends[0], NULL, to, NULL, (size_t)in_pipe, SPLICE_F_MOVE | (length > 0 ? SPLICE_F_MORE : 0));
            sent = out > 0;
            in_pipe -= out;
        }
    }
    close(ends[0]);
    close(ends[1]);
    return sent;
}

static sender how = send_by_sendfile;
static char **files;
static uint64_t file_count;

/* One request: the file is opened for it, as any server of many files must. */
static bool answer(int to, uint64_t index, uint64_t wanted) {
    if (index >= file_count) die_because("request", "no such file");
    int from = open(files[index], O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (from < 0 || fstat(from, &facts) != 0) die(files[index]);
    uint64_t length = (uint64_t)facts.st_size;
    if (wanted != 0 && wanted < length) length = wanted;
    unsigned char header[RAW_HEADER_BYTES];
    put_u64(header, length);
    bool sent = send(to, header, sizeof header, MSG_MORE | MSG_NOSIGNAL) == sizeof header && how(to, from, length);
    close(from);
    return sent;
}

static void *serve(void *argument) {
    int peer = (int)(intptr_t)argument;
    int on = 1;
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    unsigned char request[RAW_REQUEST_BYTES];
    while (read_exactly(peer, request, sizeof request) && answer(peer, take_u64(request), take_u64(request + 8))) continue;
    close(peer);
    return NULL;
}

static sender sender_named(const char *name) {
    if (strcmp(name, "copy") == 0) return send_by_copy;
    if (strcmp(name, "mmap") == 0) return send_by_mmap;
    if (strcmp(name, "sendfile") == 0) return send_by_sendfile;
    if (strcmp(name, "splice") == 0) return send_by_splice;
    die_because(name, "no such way to send");
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"how", required_argument, NULL, 'h'},
        {"buffer", required_argument, NULL, 'b'},
        {"congestion", required_argument, NULL, 'c'},
        {NULL, 0, NULL, 0},
    };
    const char *congestion = NULL;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'h': how = sender_named(optarg); break;
        case 'b': buffer_bytes = parse_count(optarg, 1 << 30); break;
        case 'c': congestion = optarg; break;
        default: return 2;
        }
    }
    files = argv + optind;
    file_count = (uint64_t)(argc - optind);
    prepare_process();
    allow_many_descriptors();
    int listener = listen_and_announce(congestion);
    for (;;) {
        int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0) die("accept");
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)peer) != 0) die("pthread_create");
        pthread_detach(thread);
    }
}
