// Connections to Towpath's servers.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <zmq.hpp>

namespace towpath {

// A connection that has ended, or that couldn't be made.
struct Lost : std::runtime_error {
    Lost() : std::runtime_error("the connection is lost") {}
};

// Keys of CURVE, in Z85.
struct Keys {
    std::string own, secret, server;
};

using Arguments = std::vector<std::string>;

// Reads keys from files of `tow key`: the client's secret key and the server's public key. No files are no keys.
std::optional<Keys> read_keys(const Arguments &arguments, size_t first);

using Message = std::vector<std::string>;

// One connection. libzmq would make the next one without a word, but what was asked for must be asked for again.
class Link {
public:
    Link(std::string endpoint, const std::optional<Keys> &keys);
    ~Link();
    Link(const Link &) = delete;
    Link &operator=(const Link &) = delete;

    // Queues a message; throws Lost.
    void send(const Message &frames);

    // The next message, or nothing if none comes in time; below 0 is without end. Throws Lost, or why the server refuses us.
    std::optional<Message> receive(std::chrono::milliseconds timeout);

    // The next message, whenever it comes.
    Message receive();

    // Lets the server take what was sent.
    void linger();

private:
    std::string endpoint;
    zmq::context_t context;
    zmq::socket_t dealer, monitor;
};

// Runs a session over a connection, and again over the next when that is lost: to the next endpoint, in turn.
void keep(const std::vector<std::string> &endpoints, const std::optional<Keys> &keys, const std::function<void(Link &)> &session);

// Runs a program with its arguments, of which it needs so many; returns its exit status.
int run(int count, char **arguments, size_t needed, const std::string &usage, const std::function<void(const Arguments &)> &program);

} // namespace towpath
