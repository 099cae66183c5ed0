// fetch ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE] fetches a file from `tow serve`, ten pieces ahead. What it has is in
// COPY.part, and is continued by the next connection, or the next run.
#include "towpath.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PIECE_BYTES 250000
#define AHEAD 10

struct fetch {
    const char *path;
    FILE *part;
};

static bool ask(link_to *link, const char *path, int64_t *next) {
    char offset[24], size[24];
    snprintf(offset, sizeof offset, "%" PRId64, *next);
    snprintf(size, sizeof size, "%d", PIECE_BYTES);
    *next += PIECE_BYTES;
    return send_words(link, 4, (const char *[]){"fetch", path, offset, size});
}

static bool session(link_to *link, void *state) {
    struct fetch *fetch = state;
    fseeko(fetch->part, 0, SEEK_END);
    int64_t next = ftello(fetch->part);
    for (int n = 0; n < AHEAD; n++)
        if (!ask(link, fetch->path, &next)) return false;
    for (;;) {
        message answer;
        if (receive(link, -1, &answer) == LOST) return false;
        size_t size;
        const char *bytes = bytes_of(&answer, answer.count - 1, &size);
        if (answer.count > 1) // the word "error", and why
            die("%s: %.*s", fetch->path, (int)size, bytes);
        if (fwrite(bytes, 1, size, fetch->part) != size || fflush(fetch->part) != 0) die("%s", strerror(errno));
        close_message(&answer);
        if (size < PIECE_BYTES) return true; // the end of the file
        if (!ask(link, fetch->path, &next)) return false;
    }
}

int main(int count, char **arguments) {
    if (count < 4) die("usage: fetch ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE]");
    keys keys = read_keys(count - 4, arguments + 4);
    char part[4096];
    if (snprintf(part, sizeof part, "%s.part", arguments[3]) >= (int)sizeof part) die("the path is too long");
    struct fetch fetch = {arguments[2], fopen(part, "ab")};
    if (!fetch.part) die("%s: %s", part, strerror(errno));
    keep(arguments[1], &keys, session, &fetch);
    if (fclose(fetch.part) != 0 || rename(part, arguments[3]) != 0) die("%s: %s", arguments[3], strerror(errno));
}
