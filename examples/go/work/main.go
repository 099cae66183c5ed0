// work ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] is a worker that takes ten requests at a time and replies in capitals.
// Requests that it has when it ends go to another worker.
package main

import (
	"bytes"
	"errors"
	"log"
	"os"

	"towpath.example/towpath"
)

// Requests that the broker may give at a time.
const credit = 10

func handle(body []byte) []byte {
	return bytes.ToUpper(body)
}

func work(link *towpath.Link, service string) error {
	blocks := towpath.Blocks{Link: link, Header: towpath.WorkerHeader}
	if err := blocks.Add(towpath.Ready(credit, service), nil); err != nil {
		return err
	}
	for {
		if err := blocks.Flush(); err != nil {
			return err
		}
		message, err := link.Receive(-1)
		if err != nil {
			return err
		}
		records, err := towpath.Decode(message, towpath.WorkerHeader)
		if err != nil {
			return err
		}
		for _, record := range records {
			if record.Kind != towpath.WorkerRequest {
				continue
			}
			reply := handle(bytes.Join(record.Body, nil))
			if err := blocks.Add(towpath.WorkerReply(record.Token, 200, nil, reply)); err != nil {
				return err
			}
		}
	}
}

func run(arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("usage: work ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE]")
	}
	keys, err := towpath.ReadKeys(arguments[2:])
	if err != nil {
		return err
	}
	session := func(link *towpath.Link) error { return work(link, arguments[1]) }
	return towpath.Keep([]string{arguments[0]}, keys, session)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
