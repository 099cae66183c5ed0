// follow ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE] keeps a copy of PATH ("" is all) of `tow serve --watch`: first
// what is there, then each change. Links are left out.
#include "towpath.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CREDIT 1000000 // bytes that the server may have in flight
#define SLOT_BYTES_MIN 256
#define CURSOR_BYTES_MAX 64
#define PATH_BYTES_MAX 4096

typedef struct {
    char *path;
    bool stale; // it hasn't come again since the full state began
} copied;

typedef struct {
    const char *path;
    char cursor[CURSOR_BYTES_MAX + 1];
    copied *have; // what this run has put into its directory
    size_t count;
} follower;

static copied *find(follower *follower, const char *path) {
    for (size_t n = 0; n < follower->count; n++)
        if (strcmp(follower->have[n].path, path) == 0) return &follower->have[n];
    return NULL;
}

static void add(follower *follower, const char *path) {
    copied *old = find(follower, path);
    if (old) {
        old->stale = false;
        return;
    }
    follower->have = realloc(follower->have, (follower->count + 1) * sizeof *follower->have);
    char *copy = strdup(path);
    if (!follower->have || !copy) die("no memory");
    follower->have[follower->count++] = (copied){copy, false};
}

// Takes away only what this run has put there, and no directory that has something else.
static void take_away(follower *follower, copied *gone) {
    remove(gone->path);
    free(gone->path);
    *gone = follower->have[--follower->count];
}

static int by_path_backwards(const void *a, const void *b) {
    return strcmp(((const copied *)b)->path, ((const copied *)a)->path);
}

static void take_stale_away(follower *follower) {
    // What is in a directory goes before it.
    if (follower->count) qsort(follower->have, follower->count, sizeof *follower->have, by_path_backwards);
    size_t kept = 0;
    for (size_t n = 0; n < follower->count; n++) {
        if (follower->have[n].stale) {
            remove(follower->have[n].path);
            free(follower->have[n].path);
        } else {
            follower->have[kept++] = follower->have[n];
        }
    }
    follower->count = kept;
}

// Whether a path stays inside the directory: never trust the server.
static bool is_inside(const char *path) {
    if (!*path) return false;
    for (const char *name = path;; name++) {
        size_t size = strcspn(name, "/");
        if (size == 0 || (size == 1 && name[0] == '.') || (size == 2 && name[0] == '.' && name[1] == '.')) return false;
        name += size;
        if (!*name) return true;
    }
}

static void make_directories(char *path) {
    for (char *slash = path; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST) die("%s: %s", path, strerror(errno));
        *slash = '/';
    }
}

// Writes a piece; true if the file is complete.
static bool write_piece(char *path, int64_t size, int64_t offset, const char *bytes, size_t count) {
    char part[PATH_BYTES_MAX + 8];
    snprintf(part, sizeof part, "%s.part", path);
    make_directories(path);
    int file = open(part, O_WRONLY | O_CREAT | (offset ? 0 : O_TRUNC), 0666);
    if (file < 0 || pwrite(file, bytes, count, offset) != (ssize_t)count || close(file) != 0)
        die("%s: %s", part, strerror(errno));
    if (offset + (int64_t)count < size) return false;
    if (rename(part, path) != 0) die("%s: %s", path, strerror(errno));
    printf("file %s\n", path);
    return true;
}

// Carries a message out; true if its change is complete.
static bool change(follower *follower, message *message) {
    size_t count;
    const char *bytes = bytes_of(message, 5, &count);
    if (is_word(message, 0, "full")) {
        for (size_t n = 0; n < follower->count; n++) follower->have[n].stale = true;
        return false;
    }
    if (is_word(message, 0, "live")) {
        take_stale_away(follower);
        puts("up to date");
        return true;
    }
    char path[PATH_BYTES_MAX + 1] = "";
    size_t size;
    const char *sent = bytes_of(message, 1, &size);
    if (size < sizeof path) memcpy(path, sent, size);
    if (strlen(path) != size || !is_inside(path)) die("the server sent the path %.*s", (int)size, sent);
    copied *old = find(follower, path);
    if (is_word(message, 0, "gone")) {
        if (old) take_away(follower, old);
        printf("gone %s\n", path);
    } else if (is_word(message, 0, "dir")) {
        make_directories(path);
        if (mkdir(path, 0777) != 0 && errno != EEXIST) die("%s: %s", path, strerror(errno));
        add(follower, path);
    } else if (is_word(message, 0, "file")) {
        if (!write_piece(path, number_of(message, 3), number_of(message, 4), bytes, count)) return false;
        add(follower, path);
    } else if (is_word(message, 0, "void")) { // the file changed meanwhile, and comes again
        printf("void %s %.*s\n", path, (int)count, bytes);
    }
    return true;
}

static bool grant(link_to *link, size_t bytes) {
    char text[24];
    snprintf(text, sizeof text, "%zu", bytes > SLOT_BYTES_MIN ? bytes : SLOT_BYTES_MIN);
    return send_words(link, 2, (const char *[]){"credit", text});
}

static bool session(link_to *link, void *state) {
    follower *follower = state;
    if (!send_words(link, 3, (const char *[]){"follow", follower->path, follower->cursor}) || !grant(link, CREDIT)) return false;
    for (bool connected = true; connected;) {
        message message;
        enum received received = receive(link, -1, &message);
        if (received == LOST) return false;
        if (received == TIMEOUT) continue;
        size_t size;
        const char *bytes = bytes_of(&message, message.count - 1, &size);
        if (message.count == 2) // the word "error", and why
            die("%s: %.*s", follower->path, (int)size, bytes);
        if (message.count != 6) die("a message of %d frames: is it `tow serve`?", message.count);
        connected = grant(link, size);
        if (change(follower, &message)) {
            bytes = bytes_of(&message, 2, &size);
            if (size > CURSOR_BYTES_MAX) die("a cursor of %zu bytes", size);
            snprintf(follower->cursor, sizeof follower->cursor, "%.*s", (int)size, bytes);
        }
        fflush(stdout);
        close_message(&message);
    }
    return false;
}

int main(int count, char **arguments) {
    if (count < 4) die("usage: follow ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE]");
    keys keys = read_keys(count - 4, arguments + 4);
    if (chdir(arguments[3]) != 0) die("%s: %s", arguments[3], strerror(errno));
    follower follower = {.path = arguments[2], .cursor = "beginning"};
    keep(arguments[1], &keys, session, &follower);
}
