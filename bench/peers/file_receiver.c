/* Receives one file from raw_server and writes it to disk, in the ways that a receiver has.
 *
 * usage: file_receiver --port PORT --to FILE [--how copy|threads|splice] [--buffer BYTES]
 *
 * `copy` is one thread that reads and writes in turn; `threads` has one that reads and one that writes; `splice` moves the data
 * through a pipe without seeing it, into a file that is allocated beforehand. */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RING_BUFFERS = 4, PIPE_BYTES = 1 << 20 };

static size_t buffer_bytes = 256 << 10;

static void write_fully(int to, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(to, data, size);
        if (written < 0) die("write");
        data += written;
        size -= (size_t)written;
    }
}

static size_t receive_some(int from, char *buffer, uint64_t missing) {
    size_t wanted = missing < buffer_bytes ? (size_t)missing : buffer_bytes;
    size_t have = 0;
    while (have < wanted) {
        ssize_t got = recv(from, buffer + have, wanted - have, 0);
        if (got <= 0) die("recv");
        have += (size_t)got;
    }
    return have;
}

static char *allocate(size_t size) {
    char *buffer = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (buffer == NULL) die("aligned_alloc");
    return buffer;
}

static void receive_by_copy(int from, int to, uint64_t length) {
    char *buffer = allocate(buffer_bytes);
    for (uint64_t done = 0; done < length;) {
        size_t got = receive_some(from, buffer, length - done);
        write_fully(to, buffer, got);
        done += got;
    }
    free(buffer);
}

/* A ring of buffers between the thread that reads and the one that writes. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *buffers[RING_BUFFERS];
    size_t filled[RING_BUFFERS];
    uint64_t read, written; /* counts of buffers, ever */
    uint64_t length;
    int to;
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *write_ring(void *unused) {
    (void)unused;
    for (uint64_t done = 0; done < ring.length;) {
        pthread_mutex_lock(&ring.lock);
        while (ring.read == ring.written) pthread_cond_wait(&ring.changed, &ring.lock);
        size_t slot = ring.written % RING_BUFFERS;
        pthread_mutex_unlock(&ring.lock);
        write_fully(ring.to, ring.buffers[slot], ring.filled[slot]);
        done += ring.filled[slot];
        pthread_mutex_lock(&ring.lock);
        ring.written++;
        pthread_cond_signal(&ring.changed);
        pthread_mutex_unlock(&ring.lock);
    }
    return NULL;
}

static void receive_by_threads(int from, int to, uint64_t length) {
    ring.length = length;
    ring.to = to;
    for (int i = 0; i < RING_BUFFERS; i++) ring.buffers[i] = allocate(buffer_bytes);
    pthread_t writer;
    if (pthread_create(&writer, NULL, write_ring, NULL) != 0) die("pthread_create");
    for (uint64_t done = 0; done < length;) {
        pthread_mutex_lock(&ring.lock);
        while (ring.read - ring.written == RING_BUFFERS) pthread_cond_wait(&ring.changed, &ring.lock);
        size_t slot = ring.read % RING_BUFFERS;
        pthread_mutex_unlock(&ring.lock);
        ring.filled[slot] = receive_some(from, ring.buffers[slot], length - done);
        done += ring.filled[slot];
        pthread_mutex_lock(&ring.lock);
        ring.read++;
        pthread_cond_signal(&ring.changed);
        pthread_mutex_unlock(&ring.lock);
    }
    pthread_join(writer, NULL);
}

static void receive_by_splice(int from, int to, uint64_t length) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) die("pipe");
    fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES);
    if (fallocate(to, 0, 0, (off_t)length) != 0) die("fallocate");
    for (uint64_t done = 0; done < length;) {
        uint64_t missing = length - done;
        ssize_t in_pipe = splice(from, NULL, ends[1], NULL, missing < PIPE_BYTES ? missing : PIPE_BYTES, SPLICE_F_MOVE);
        if (in_pipe <= 0) die("splice from the socket");
        done += (uint64_t)in_pipe;
        while (in_pipe > 0) {
            ssize_t out = splice(ends[0], NULL, to, NULL, (size_t)in_pipe, SPLICE_F_MOVE);
            if (out <= 0) die("splice to the file");
            in_pipe -= out;
        }
    }
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'},
        {"to", required_argument, NULL, 't'},
        {"how", required_argument, NULL, 'h'},
        {"buffer", required_argument, NULL, 'b'},
        {NULL, 0, NULL, 0},
    };
    uint16_t port = 0;
    const char *path = NULL, *how = "copy";
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': port = (uint16_t)parse_count(optarg, UINT16_MAX); break;
        case 't': path = optarg; break;
        case 'h': how = optarg; break;
        case 'b': buffer_bytes = parse_count(optarg, 1 << 30); break;
        default: return 2;
        }
    }
    if (path == NULL) die_because("usage", "--to is missing");
    prepare_process();
    double begin = now_seconds();
    int from = connect_loopback(port);
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (to < 0) die(path);
    unsigned char request[RAW_REQUEST_BYTES] = {0}, header[RAW_HEADER_BYTES];
    write_all(from, request, sizeof request, 0);
    if (!read_exactly(from, header, sizeof header)) die_because("server", "closed without an answer");
    uint64_t length = take_u64(header);
    if (strcmp(how, "copy") == 0) receive_by_copy(from, to, length);
    else if (strcmp(how, "threads") == 0) receive_by_threads(from, to, length);
    else if (strcmp(how, "splice") == 0) receive_by_splice(from, to, length);
    else die_because(how, "no such way to receive");
    if (close(to) != 0) die(path);
    report(length, now_seconds() - begin);
    return 0;
}
