// Fetches a file from `tow serve` with czmq: ENDPOINT PATH COPY, and for CURVE SERVER_KEY CERTIFICATE; ten requests ahead.
#include <czmq.h>

#define PIECE_BYTES 250000
#define AHEAD 10

static int ask(zsock_t *dealer, const char *path, size_t index) {
    char offset[32];
    snprintf(offset, sizeof offset, "%zu", index * PIECE_BYTES);
    return zstr_sendx(dealer, "fetch", path, offset, "250000", NULL);
}

int main(int count, char **arguments) {
    if (count != 4 && count != 6) {
        return 2;
    }
    zsock_t *dealer = zsock_new(ZMQ_DEALER);
    zsock_set_rcvtimeo(dealer, 30000);
    zsock_set_linger(dealer, 0);
    if (count == 6) {
        zcert_t *certificate = zcert_load(arguments[5]);
        if (!certificate) {
            fprintf(stderr, "%s is no certificate\n", arguments[5]);
            return 1;
        }
        zcert_apply(certificate, dealer);
        zsock_set_curve_serverkey(dealer, arguments[4]);
        zcert_destroy(&certificate);
    }
    FILE *copy = fopen(arguments[3], "wb");
    if (!copy || zsock_connect(dealer, "%s", arguments[1]) != 0) {
        perror(arguments[3]);
        return 1;
    }
    size_t asked = 0;
    while (asked < AHEAD) {
        ask(dealer, arguments[2], asked++);
    }
    for (;;) {
        zmsg_t *answer = zmsg_recv(dealer);
        if (!answer || zmsg_size(answer) != 1) {
            fprintf(stderr, "no piece but %zu frames\n", answer ? zmsg_size(answer) : 0);
            return 1;
        }
        zframe_t *piece = zmsg_first(answer);
        size_t bytes = zframe_size(piece);
        if (fwrite(zframe_data(piece), 1, bytes, copy) != bytes) {
            perror(arguments[3]);
            return 1;
        }
        zmsg_destroy(&answer);
        if (bytes < PIECE_BYTES) {
            break;
        }
        ask(dealer, arguments[2], asked++);
    }
    zsock_destroy(&dealer);
    return fclose(copy) == 0 ? 0 : 1;
}
