// work ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] is a worker that takes ten requests at a time and replies in capitals.
// Requests that it has when it ends go to another worker.
#include <algorithm>
#include <cctype>

#include "records.hpp"

using namespace towpath;

constexpr uint32_t CREDIT = 10; // requests that the broker may give at a time

static std::string handle(std::string body) {
    std::transform(body.begin(), body.end(), body.begin(), [](unsigned char byte) { return std::toupper(byte); });
    return body;
}

static void work(Link &link, const std::string &service) {
    Blocks blocks(link, WORKER_HEADER);
    blocks.add(ready(CREDIT, service));
    for (;;) {
        blocks.flush();
        for (const auto &record : decode(link.receive(), WORKER_HEADER))
            if (const auto *request = std::get_if<Request>(&record))
                blocks.add(reply(request->token, 200, {}, {handle(join(request->body))}));
    }
}

int main(int count, char **words) {
    return run(count, words, 2, "work ENDPOINT SERVICE", [](const Arguments &arguments) {
        keep({arguments[0]}, read_keys(arguments, 2), [&](Link &link) { work(link, arguments[1]); });
    });
}
