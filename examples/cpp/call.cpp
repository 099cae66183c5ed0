// call ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] <LINES sends a numbered request for each line, and prints
// NUMBER STATUS REPLY as the replies come. When a broker is lost, what has no outcome goes to the next, under the same numbers.
#include <iostream>
#include <random>
#include <sstream>

#include "records.hpp"

using namespace towpath;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t AHEAD = 1000;                   // requests that may wait for their outcome
constexpr auto NEVER = Clock::time_point::max(); // when a request is sent that has been sent

struct Asked {
    std::string body;
    Clock::time_point due{}; // when to send it
    bool resent = false;     // it was sent over an earlier connection
    bool settled = false;
    std::string parts{}; // of the reply
};

class Caller {
public:
    bool failed = false;

    Caller(std::string service, std::istream &lines) : service(std::move(service)) {
        std::random_device random;
        for (int n = 0; n < 16; n++) id += char(random());
        for (std::string line; std::getline(lines, line);) requests.push_back({line});
    }

    // Goes on until every request has its outcome.
    void session(Link &link) {
        for (auto &request : requests) {
            request.resent |= request.due == NEVER;
            request.due = {};
            request.parts.clear();
        }
        Blocks blocks(link, CLIENT_HEADER);
        blocks.add(hello(id, first + 1));
        while (first < requests.size()) {
            const auto wait = send(blocks);
            if (const auto message = link.receive(wait)) // else one is due again
                for (const auto &record : decode(*message, CLIENT_HEADER)) take(record, blocks);
            while (first < requests.size() && requests[first].settled) first++;
        }
        blocks.flush();
    }

private:
    std::string service, id;
    std::vector<Asked> requests; // the first has number 1
    size_t first = 0;            // all before it are settled

    // Sends what is due, and returns how long until something else is: below 0 for ever.
    milliseconds send(Blocks &blocks) {
        const auto now = Clock::now();
        auto next = NEVER;
        for (size_t n = first; n < std::min(first + AHEAD, requests.size()); n++) {
            auto &asked = requests[n];
            if (asked.settled) continue;
            if (asked.due > now) {
                next = std::min(next, asked.due);
                continue;
            }
            asked.due = NEVER;
            blocks.add(request(n + 1, service, 0, asked.resent ? RESENT : 0, {asked.body}));
        }
        blocks.flush();
        return next == NEVER ? milliseconds(-1) : std::chrono::ceil<milliseconds>(next - now);
    }

    Asked *waiting(uint64_t number) {
        if (number == 0 || number > requests.size() || requests[number - 1].settled) return nullptr;
        return &requests[number - 1];
    }

    void take(const Record &record, Blocks &blocks) {
        if (const auto *reply = std::get_if<Reply>(&record)) {
            auto *asked = waiting(reply->number);
            if (!asked) return;
            asked->parts += join(reply->body);
            // With 206 its parts were sent over an earlier connection.
            if (!reply->part) settle(*asked, reply->number, reply->status == 206 ? 410 : reply->status, asked->parts, blocks);
        } else if (const auto *refused = std::get_if<Refused>(&record)) {
            auto *asked = waiting(refused->number);
            if (!asked) return;
            if (refused->millis) asked->due = Clock::now() + milliseconds(refused->millis);
            else settle(*asked, refused->number, refused->status, refused->reason, blocks);
        }
    }

    void settle(Asked &asked, uint64_t number, uint16_t status, const std::string &body, Blocks &blocks) {
        std::cout << number << " " << status << " " << body << std::endl;
        failed |= status != 200;
        asked.settled = true;
        asked.parts.clear();
        blocks.add(confirm(number, 1));
    }
};

int main(int count, char **words) {
    return run(count, words, 2, "call ENDPOINT[,ENDPOINT...] SERVICE", [](const Arguments &arguments) {
        const auto keys = read_keys(arguments, 2);
        std::vector<std::string> endpoints;
        std::istringstream list(arguments[0]);
        for (std::string endpoint; std::getline(list, endpoint, ',');) endpoints.push_back(endpoint);
        Caller caller(arguments[1], std::cin);
        keep(endpoints, keys, [&](Link &link) { caller.session(link); });
        if (caller.failed) throw std::runtime_error("some requests failed");
    });
}
