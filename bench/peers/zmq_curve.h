/* CURVE for the peers on libzmq. A server has a secret key and admits everybody; a client knows the server's key and makes one of its own. */
#ifndef ZMQ_CURVE_H
#define ZMQ_CURVE_H

#include "peer.h"

#include <zmq.h>

enum { CURVE_KEY_TEXT = 41 };

static inline void curve_server(void *socket, const char *secret) {
    int yes = 1;
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof yes) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, CURVE_KEY_TEXT) != 0)
        die_because("ZMQ_CURVE_SERVER", zmq_strerror(zmq_errno()));
}

static inline void curve_client(void *socket, const char *server) {
    char public[CURVE_KEY_TEXT], secret[CURVE_KEY_TEXT];
    if (zmq_curve_keypair(public, secret) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server, CURVE_KEY_TEXT) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public, CURVE_KEY_TEXT) != 0 ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, CURVE_KEY_TEXT) != 0)
        die_because("ZMQ_CURVE_SERVERKEY", zmq_strerror(zmq_errno()));
}

#endif
