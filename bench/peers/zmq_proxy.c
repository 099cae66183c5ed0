/* A proxy between clients and workers that knows no protocol: a ROUTER, a DEALER, and zmq_proxy between them. It announces the
 * clients' port; the workers' endpoint is given.
 *
 * usage: zmq_proxy --workers ENDPOINT [--clients ENDPOINT] */
#include "peer.h"
#include "zmq_frames.h"

#include <getopt.h>

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"workers", required_argument, NULL, 'w'}, {"clients", required_argument, NULL, 'c'}, {NULL, 0, NULL, 0}};
    const char *workers = NULL, *clients = "tcp://127.0.0.1:*";
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'w': workers = optarg; break;
        case 'c': clients = optarg; break;
        default: return 2;
        }
    }
    if (workers == NULL) die_because("usage", "zmq_proxy --workers ENDPOINT");
    prepare_process();
    void *context = zmq_ctx_new();
    void *front = open_socket(context, ZMQ_ROUTER), *back = open_socket(context, ZMQ_DEALER);
    bind_socket(back, workers);
    announce(bind_socket(front, clients));
    zmq_proxy(front, back, NULL);
    die_zmq("zmq_proxy");
}
