// fetch ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE] fetches a file from `tow serve`, ten pieces ahead. What it has is in
// COPY.part, and is continued by the next connection, or the next run.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"towpath.example/towpath"
)

const (
	pieceBytes = 250_000
	ahead      = 10
)

func fetch(link *towpath.Link, path string, part *os.File) error {
	have, err := part.Seek(0, 2)
	if err != nil {
		return err
	}
	next := have
	ask := func() error {
		offset := strconv.FormatInt(next, 10)
		next += pieceBytes
		return link.Send("fetch", path, offset, strconv.Itoa(pieceBytes))
	}
	for range ahead {
		if err := ask(); err != nil {
			return err
		}
	}
	for {
		answer, err := link.Receive(-1)
		if err != nil {
			return err
		}
		if len(answer) > 1 { // the word "error", and why
			return fmt.Errorf("%s: %s", path, answer[1])
		}
		if _, err := part.Write(answer[0]); err != nil {
			return err
		}
		if len(answer[0]) < pieceBytes { // the end of the file
			return nil
		}
		if err := ask(); err != nil {
			return err
		}
	}
}

func run(arguments []string) error {
	if len(arguments) < 3 {
		return errors.New("usage: fetch ENDPOINT PATH COPY [SECRET-KEY-FILE SERVER-KEY-FILE]")
	}
	endpoint, path, target := arguments[0], arguments[1], arguments[2]
	keys, err := towpath.ReadKeys(arguments[3:])
	if err != nil {
		return err
	}
	part, err := os.OpenFile(target+".part", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer part.Close()
	session := func(link *towpath.Link) error { return fetch(link, path, part) }
	if err := towpath.Keep([]string{endpoint}, keys, session); err != nil {
		return err
	}
	return os.Rename(target+".part", target)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
