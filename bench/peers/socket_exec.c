/* Runs a program with a socket as its standard output or input: how tar goes over a network without a copy in between.
 *
 * usage: socket_exec listen PROGRAM ARGUMENT...         the first connection becomes its standard output
 *        socket_exec connect PORT PROGRAM ARGUMENT...   the connection becomes its standard input */
#define _GNU_SOURCE
#include "peer.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int at = 1;
    if (argc > 2 && strcmp(argv[at], "listen") == 0) {
        at += 1;
        prepare_process();
        int listener = listen_and_announce(NULL);
        int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0) die("accept");
        if (dup2(peer, STDOUT_FILENO) < 0) die("dup2");
    } else if (argc > 3 && strcmp(argv[at], "connect") == 0) {
        int peer = connect_loopback((uint16_t)parse_count(argv[at + 1], UINT16_MAX));
        at += 2;
        if (dup2(peer, STDIN_FILENO) < 0) die("dup2");
    } else {
        die_because("usage", "socket_exec listen PROGRAM... | connect PORT PROGRAM...");
    }
    execvp(argv[at], argv + at);
    die(argv[at]);
}
